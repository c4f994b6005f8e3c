-- malloc: decides a batch of inputs of one conversation, in order.
--
-- KEYS  1 meta  2 log  3 read  4 rcpt  5 mem  6 ids0  7 ids1  8 own  9 rev  10 ref
-- ARGV  1 incarnation ('' = ask the server)  2 expiry in s  3 now in ms
--       4 floor  5 unread policy (0 advance, 1 keep)  6 length of the hot log
--       7 number of input partitions, 8... their names, then the inputs, each
--       <act> <index of its partition> <offset> and by act:
--         s  user id hash time header body                send
--         q  user id hash time header body lost number    resequence a message
--         v  user version lost number                     resequence a member
--         j  user op history from                         join
--         l  user op membership                           leave
--         c  user op                                      clear
--         m  seq                                          raise the minimum
--         r  actor seq time                               revoke
--         a  user op attributes kind                      set attributes (kind: g group, s single)
--         p  choice                                       set the unread policy (0 default, 1 advance, 2 keep)
--         w                                               warm
--         x  reason                                       refuse
--       and last: the token of the warm-up that must stand ('' = any), name and
--       number of the batch's place ('' = none), see 'bt'
-- Reply {'cold', why} | {'partial', token, user...} |
--       {'ok', max, min before, policy before, outcome...}
--       where an outcome is the seq of an accepted message, or {verdict, seq,
--       reason, changed, min, member, read, receipt, advance, repaired, policy,
--       override}. policy is the one that holds for a message, and from a
--       command on; override the version and choice of what the conversation
--       says of it, as version * 4 + choice.
-- Atomicity: a script is not rolled back, so everything that can turn the batch
-- down as a whole is read and judged before the first write.
--
-- Constants that Go writes before this text: HORIZON, MAXSEQ, MAXOWN,
-- MAXMEMBERSHIPS, KEPTOPS, MAXATTRIBUTES, SLACK.

local META, LOG, READ, RCPT, MEM, IDS, OLDIDS, OWN, REV, REF = unpack(KEYS)
local EXPIRY, NOW, FLOOR = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local PARTS = tonumber(ARGV[7])
local FIRST = 8 + PARTS

-- unpack() has a limit, so long lists go in steps.
local STEP = 1000
local function steps(cmd, key, list)
  for i = 1, #list, STEP do
    redis.call(cmd, key, unpack(list, i, math.min(i + STEP - 1, #list)))
  end
end

local function hmget(key, fields, into)
  if #fields == 1 then
    into[fields[1]] = redis.call('HGET', key, fields[1]) or into[fields[1]]
    return
  end
  for i = 1, #fields, STEP do
    local got = redis.call('HMGET', key, unpack(fields, i, math.min(i + STEP - 1, #fields)))
    for k, v in ipairs(got) do
      if v then into[fields[i + k - 1]] = v end
    end
  end
end

------------------------------------------------------------------- judge

local meta
if PARTS == 1 then
  meta = redis.call('HMGET', META, 'inc', 'st', 'max', 'min', 'full', 'lt', 'own', 'in:' .. ARGV[8], 'bt', 'base')
else
  local fields = {'inc', 'st', 'max', 'min', 'full', 'lt', 'own'}
  for p = 1, PARTS do fields[7 + p] = 'in:' .. ARGV[7 + p] end
  fields[8 + PARTS], fields[9 + PARTS] = 'bt', 'base'
  meta = redis.call('HMGET', META, unpack(fields))
end

local state = tm_state(meta[1], meta[2], ARGV[1])
if state ~= 'warm' then return {'cold', state} end
local TOKEN = ARGV[#ARGV - 2]
if TOKEN ~= '' and redis.call('HGET', META, 'tok') ~= TOKEN then return {'cold', 'token'} end

local max, min = tonumber(meta[3] or '0'), tonumber(meta[4] or '0')
-- What only this script needs stands in one field: where the young generation
-- of ids starts, whether there is an old one and a ref, when the expiry was
-- renewed, the policy that 'pol' says, and what the conversation says of it.
local gen, old, hadrefs, renewed, hadpolicy, override = string.match(meta[7], '^(%d+) (%d) (%d) (%d+) (%d) ?(%d*)$')
gen, renewed = tonumber(gen), tonumber(renewed)
override = tonumber(override) or 0
local hadoverride = override

-- Whether own messages leave the read watermark alone from here on.
local function keeps()
  local choice = override % 4
  if choice == 0 then return ARGV[5] == '1' end
  return choice == 2
end
local KEEP = keeps()
local startpolicy = KEEP and 1 or 0
local policy, rotated = hadpolicy, false
local startmax, startmin = max, min
if max < FLOOR then return {'cold', 'floor'} end

-- The counter and the hot log must end at the same seq. A revoked message is
-- gone from the log, so its tombstone counts as well.
local tail = redis.call('XREVRANGE', LOG, '+', '-', 'COUNT', 1)[1]
if tail then
  local last = tonumber(string.match(tail[1], '^(%d+)'))
  if last > max then return {'cold', 'counter'} end
  for s = max, last + 1, -1 do
    if redis.call('HEXISTS', REV, F(s)) == 0 then return {'cold', 'counter'} end
  end
end

-- Where each input starts, which members must be known, which ids looked up.
-- Tables are made only when they are needed: in a call for one message they
-- would cost as much as a look-up.
local at, users, ids = {}, {}, {}
do
  local seen, sizes, i, n = {}, nil, FIRST, #ARGV - 3
  while i <= n do
    local act, size, byuser = ARGV[i], 9, true
    at[#at + 1] = i
    if act ~= 's' then
      sizes = sizes or {q = 11, v = 7, j = 7, l = 6, c = 5, m = 4, r = 6, a = 7, p = 4, w = 3, x = 4}
      size = sizes[act]
      byuser = act == 'v' or act == 'j' or act == 'l' or act == 'c' or act == 'a' or (act == 'r' and ARGV[i + 3] ~= '')
    end
    if byuser and not seen[ARGV[i + 3]] then
      seen[ARGV[i + 3]] = true
      users[#users + 1] = ARGV[i + 3]
    end
    if act == 's' or act == 'q' then ids[#ids + 1] = ARGV[i + 4] end
    i = i + size
  end
end

local texts, unknown = {}, {}
hmget(MEM, users, texts)
for _, u in ipairs(users) do
  if not texts[u] then
    if meta[5] == '1' then texts[u] = '-' else unknown[#unknown + 1] = u end
  end
end
if #unknown > 0 then
  -- Whoever loads them shows the token: of this warm-up, before the load began.
  table.insert(unknown, 1, 'partial')
  table.insert(unknown, 2, redis.call('HGET', META, 'tok') or '')
  return unknown
end

-- All look-ups come before a rotation; the young generation overrules the old.
local sent = {}
if old == '1' then hmget(OLDIDS, ids, sent) end
hmget(IDS, ids, sent)

------------------------------------------------------------------- decide

local ins, moved = {}, {} -- highest offsets; those that rose, as they came
for p = 1, PARTS do ins[p] = tonumber(meta[7 + p] or '-1') end

local out, refs, notes = {}, {}, {}    -- outcomes; additions to ref, as pairs and by field
local newids, reads, owns = {}, {}, {} -- pairs for HSET; user -> seq; pairs for ZADD
local senders, cleared = {}, {}        -- keep: user -> index of its last message
local members, dirty = {}, {}          -- decoded; those to be written back
local lasttime = tonumber(meta[6] or '0')
local touchedrev = false

local hasrefs = hadrefs == '1'
if #at > 0 and tonumber(ARGV[at[1] + 2]) > ins[tonumber(ARGV[at[1] + 1])] then
  -- The batch before this one is done with: nothing of it comes again without
  -- what stands here being settled.
  if hasrefs then redis.call('DEL', REF) end
  hasrefs = false
end

local function outcome(verdict, seq)
  return {verdict, seq, '', 0, min, '', 0, 0, 0, 0, KEEP and 1 or 0, override}
end

local function refused(reason)
  local o = outcome('refused', 0)
  o[3] = reason
  return o
end

-- Whether a user may send: is open below, without decoding all of the text.
local function sends(user)
  local text = members[user] and tm_member_text(members[user]) or texts[user]
  if text == '-' then return true end
  local last, n, hi = string.match(text, '^%d+|(%d+)|[^|]-(%d+):%d+:(%d+)|')
  return last ~= nil and n == last and hi == '0'
end

-- Gives message i the next seq. It fails where Redis refuses the stream's id:
-- then the log was cut back by hand together with the counter, and only its
-- memory of the last id tells. The script ends with fatal set.
local fatal, top, toppolicy
local function allocate(i, a)
  max = max + 1
  local user, seq = ARGV[a + 3], F(max)
  top = seq
  local added = redis.pcall('XADD', LOG, seq .. '-0', 'h', ARGV[a + 7], 'b', ARGV[a + 8])
  if type(added) == 'table' and added.err then fatal = added end
  local id = ARGV[a + 5] .. seq
  sent[ARGV[a + 4]] = id
  newids[#newids + 1] = ARGV[a + 4]
  newids[#newids + 1] = id
  lasttime = math.max(lasttime, tonumber(ARGV[a + 6]))
  toppolicy = KEEP and '1' or '0'
  if KEEP then
    owns[#owns + 1] = '0'
    owns[#owns + 1] = tm_own(user, max)
    senders[user] = i
  else
    reads[user] = max
  end
  return max
end

-- Seq and sameness of a sent id that is known already.
local function known(a)
  local id = sent[ARGV[a + 4]]
  if id then return tonumber(string.sub(id, 17)), string.sub(id, 1, 16) == ARGV[a + 5] end
end

-- A message that was decided before, which policy held for it by now changed
-- perhaps: one that advanced raised its sender's mark to itself at least. Where
-- the mark stands there by another way, either policy comes to the same.
local function again(i, user, seq)
  local o = outcome('again', seq)
  local read = math.max(tonumber(redis.call('ZSCORE', READ, user) or '0'), reads[user] or 0)
  o[11] = read < seq and 1 or 0
  if o[11] == 1 then senders[user] = i end
  return o
end

-- Notes what became of an input that leaves no other trace: the reason of a
-- refusal, '+', or '=' and the member as a command left it.
local function note(a, what)
  local field = ARGV[7 + tonumber(ARGV[a + 1])] .. ':' .. ARGV[a + 2]
  notes[field] = what
  refs[#refs + 1] = field
  refs[#refs + 1] = what
end

-- What was noted about an input before, or nothing.
local function decided(a)
  local field = ARGV[7 + tonumber(ARGV[a + 1])] .. ':' .. ARGV[a + 2]
  if notes[field] then return notes[field] end
  if hasrefs then return redis.call('HGET', REF, field) or nil end
end

local function send(i, a, fresh)
  local seq, same = known(a)
  if not fresh then
    -- Under another content's id it has no seq: it was refused, for whatever
    -- reason, and that is settled where it is not noted any more.
    if not seq or not same then return outcome('known', 0) end
    return again(i, ARGV[a + 3], seq)
  end
  if seq and seq > max - HORIZON then
    if same then return outcome('resent', seq) end
    return refused('id_reused')
  end
  if not sends(ARGV[a + 3]) then return refused('not_member') end
  if max >= MAXSEQ then return refused('seqs_exhausted') end
  return allocate(i, a)
end

-- Everything but plain messages. Defining this many closures costs more than
-- deciding one message does, so it is put off until the first input needs it.
local function commands()
  local function member(user)
    local m = members[user]
    if not m then
      m = tm_member(texts[user])
      members[user] = m
    end
    return m
  end

  local function open(m)
    if m.v == 0 then return true end
    local w = m.w[#m.w]
    return w ~= nil and w[1] == m.last and w[3] == 0
  end

  local function contains(m, seq)
    if m.v == 0 then return true end
    for _, w in ipairs(m.w) do
      if seq >= w[2] and (w[3] == 0 or seq <= w[3]) then return true end
    end
    return false
  end

  local function settle(m)
    if m.last == 0 then m.last, m.w = 1, {{1, 0, 0}} end
  end

  local function record(m, op)
    m.v = m.v + 1
    m.ops[#m.ops + 1] = op .. ';' .. F(max)
    while #m.ops > KEPTOPS do table.remove(m.ops, 1) end
  end

  -- Edge at which a member's op was decided, or nil.
  local function edge_of(m, op)
    for _, o in ipairs(m.ops) do
      local id, edge = string.match(o, '^(.*);(%d+)$')
      if id == op then return tonumber(edge) end
    end
  end

  -- These three do what watermark.Member's methods of the same name do; join
  -- gives nil when there is no room, and has changed nothing then.
  local function join(m, op, history, from)
    if m.v > 0 and open(m) then
      record(m, op)
      return 0
    end
    local lower = max + 1
    if history == '1' then lower = 0
    elseif history == '2' then lower = math.min(math.max(from, 1), max + 1) end
    local first, kept = math.max(lower, 1), {}
    for _, w in ipairs(m.w) do
      local hi = math.min(w[3], first - 1)
      if w[2] < first and hi >= math.max(w[2], 1) then kept[#kept + 1] = {w[1], w[2], hi} end
    end
    if #kept >= MAXMEMBERSHIPS or m.last >= 2147483647 then return nil end
    record(m, op)
    m.last = m.last + 1
    kept[#kept + 1] = {m.last, lower, 0}
    m.w = kept
    return 1
  end

  local function leave(m, op, number)
    record(m, op)
    settle(m)
    if not open(m) or (number ~= 0 and number ~= m.last) then return 0 end
    local w = m.w[#m.w]
    w[3] = max
    if max < math.max(w[2], 1) then m.w[#m.w] = nil end
    return 1
  end

  local function clear(m, op)
    record(m, op)
    settle(m)
    local kept, changed = {}, 0
    for _, w in ipairs(m.w) do
      if w[3] ~= 0 and w[3] <= max then
        changed = 1
      else
        if w[2] <= max then w[2], changed = max + 1, 1 end
        kept[#kept + 1] = w
      end
    end
    m.w = kept
    return changed
  end

  local function with_member(o, user, m)
    o[6] = tm_member_text(m)
    local read = tonumber(redis.call('ZSCORE', READ, user) or '0')
    o[7] = math.max(read, reads[user] or 0)
    o[8] = tonumber(redis.call('ZSCORE', RCPT, user) or '0')
    return o
  end

  local function repair(o, lost, number)
    if number <= 0 or lost <= 0 then return end
    o[10] = 1
    local had = redis.call('HMGET', META, 'rn', 'rf')
    local rn, rf = tonumber(had[1] or '0'), tonumber(had[2] or '0')
    rn = math.max(rn, number)
    if rf == 0 or lost < rf then rf = lost end
    redis.call('HSET', META, 'rn', F(rn), 'rf', F(rf))
  end

  local ACT = {}

  function ACT.q(i, a, fresh)
    local lost, number = tonumber(ARGV[a + 9]), tonumber(ARGV[a + 10])
    local seq, same = known(a)
    local o
    if seq and not same then
      if fresh then return refused('id_reused') end
      return outcome('known', 0)
    end
    if seq and seq ~= lost then
      o = again(i, ARGV[a + 3], seq)
    elseif not fresh then
      return outcome('known', 0)
    elseif max >= MAXSEQ then
      return refused('seqs_exhausted')
    else
      o = outcome('accepted', allocate(i, a))
    end
    repair(o, lost, number)
    return o
  end

  function ACT.v(_, a, fresh)
    local user, m = ARGV[a + 3], member(ARGV[a + 3])
    local o = outcome('again', max)
    if fresh then
      if math.max(m.v, tonumber(ARGV[a + 4])) >= MAXSEQ then return refused('window_full') end
      settle(m)
      m.v = math.max(m.v, tonumber(ARGV[a + 4])) + 1
      dirty[user] = true
      o[1], o[4] = 'accepted', 1
    elseif m.v == 0 then
      return outcome('known', 0)
    end
    repair(o, tonumber(ARGV[a + 5]), tonumber(ARGV[a + 6]))
    return with_member(o, user, m)
  end

  -- Join, leave and clear share everything but the change itself. apply gives
  -- whether the window changed, or nil when there is no room.
  local function command(a, fresh, apply, full)
    local user, op = ARGV[a + 3], ARGV[a + 4]
    local m = member(user)
    local edge = edge_of(m, op)
    if not fresh then
      if m.v == 0 then return outcome('known', 0) end
      local o = with_member(outcome('again', edge or max), user, m)
      -- Of the last batch, which the log may not have yet, the member is told as
      -- it was then. Told as it is now, an event would bring what later inputs
      -- have changed, and whoever begins with it would decide those in between by
      -- a window that was not there yet.
      local was = decided(a)
      if was and string.sub(was, 1, 1) == '=' then o[6] = string.sub(was, 2) end
      return o
    end
    local o = outcome('accepted', edge or max)
    if not edge then
      -- Above it a double no longer counts one by one.
      if m.v >= MAXSEQ then return refused('window_full') end
      local changed = apply(m, op, user)
      if not changed then return refused(full or 'window_full') end
      dirty[user] = true
      o[4] = changed
    end
    with_member(o, user, m)
    note(a, '=' .. o[6])
    return o
  end

  function ACT.j(_, a, fresh)
    return command(a, fresh, function(m, op)
      return join(m, op, ARGV[a + 5], tonumber(ARGV[a + 6]))
    end)
  end

  function ACT.l(_, a, fresh)
    return command(a, fresh, function(m, op)
      return leave(m, op, tonumber(ARGV[a + 5]))
    end)
  end

  function ACT.c(_, a, fresh)
    return command(a, fresh, function(m, op, user)
      if max > 0 then reads[user], cleared[user] = math.max(reads[user] or 0, max), true end
      return clear(m, op)
    end)
  end

  -- Sets attributes in the text of those that stand, sorted by name; nil when
  -- there are too many.
  local function set(m, op, text)
    local have, names, changed = {}, {}, 0
    for name, value in string.gmatch(m.a, '([^,;]+);([^,]*)') do have[name] = value end
    for name, value in string.gmatch(text, '([^,;]+);([^,]*)') do
      if (have[name] or '') ~= value then changed = 1 end
      have[name] = value ~= '' and value or nil
    end
    for name in pairs(have) do names[#names + 1] = name end
    if #names > MAXATTRIBUTES then return nil end
    record(m, op)
    settle(m)
    table.sort(names)
    for k, name in ipairs(names) do names[k] = name .. ';' .. have[name] end
    m.a = table.concat(names, ',')
    return changed
  end

  function ACT.a(_, a, fresh)
    local m = member(ARGV[a + 3])
    if fresh and not edge_of(m, ARGV[a + 4]) and (not open(m) or (m.v == 0 and ARGV[a + 6] == 'g')) then
      return refused('not_member')
    end
    return command(a, fresh, function(m, op) return set(m, op, ARGV[a + 5]) end, 'attributes_full')
  end

  function ACT.p(_, a, fresh)
    if not fresh then
      if override == 0 then return outcome('known', 0) end
      return outcome('again', max)
    end
    local choice, changed = tonumber(ARGV[a + 3]), 0
    if override % 4 ~= choice then
      if override >= MAXSEQ - 7 then return refused('window_full') end
      override, changed = override - override % 4 + 4 + choice, 1
      KEEP = keeps()
    end
    local o = outcome('accepted', max)
    o[4] = changed
    return o
  end

  function ACT.m(_, a, fresh)
    local seq = tonumber(ARGV[a + 3])
    if not fresh then
      if min == 0 then return outcome('known', 0) end
      return outcome('again', max)
    end
    if seq > max + 1 then return refused('no_such_seq') end
    local changed = 0
    if seq > min then
      min, changed = seq, 1
      redis.call('XTRIM', LOG, 'MINID', F(seq) .. '-0')
    end
    local o = outcome('accepted', max)
    o[4] = changed
    return o
  end

  function ACT.r(_, a, fresh, was)
    local actor, seq = ARGV[a + 3], tonumber(ARGV[a + 4])
    if not fresh then
      if was == '+' or redis.call('HEXISTS', REV, F(seq)) == 1 then return outcome('again', max) end
      return outcome('known', 0)
    end
    -- One reason for all, so that nobody learns what is beyond its window.
    if seq < 1 or seq > max or seq < min or (actor ~= '' and not contains(member(actor), seq)) then
      return refused('no_such_seq')
    end
    local o = outcome('accepted', max)
    if redis.call('HEXISTS', REV, F(seq)) == 1 then return o end
    o[4] = 1
    local entry = redis.call('XRANGE', LOG, F(seq) .. '-0', F(seq) .. '-0')[1]
    if entry then
      local kv = entry[2]
      local header = kv[1] == 'h' and kv[2] or ''
      redis.call('HSET', REV, F(seq), ARGV[a + 5] .. '|' .. actor .. '|' .. header)
      redis.call('XDEL', LOG, F(seq) .. '-0')
      touchedrev = true
    else
      note(a, '+')
    end
    return o
  end

  function ACT.w(_, _, fresh)
    if not fresh then return outcome('known', 0) end
    return outcome('accepted', max)
  end

  function ACT.x(_, a, fresh)
    if fresh then return refused(ARGV[a + 3]) end
    return outcome('known', 0)
  end

  return ACT
end

local acts
for i, a in ipairs(at) do
  local p, off = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2])
  local fresh, was = off > ins[p], nil
  if fresh then
    ins[p], moved[p] = off, ARGV[a + 2]
  else
    was = decided(a)
  end
  if was and was ~= '+' and string.sub(was, 1, 1) ~= '=' then
    out[i] = refused(was)
  else
    local o
    if ARGV[a] == 's' then
      o = send(i, a, fresh)
    else
      acts = acts or commands()
      o = acts[ARGV[a]](i, a, fresh, was)
    end
    if fatal then
      if string.sub(fatal.err, 1, 4) ~= 'ERR ' then return fatal end
      -- Cold from here on: whatever was written goes when it is made warm.
      redis.call('DEL', META)
      return {'cold', 'counter'}
    end
    if fresh and type(o) == 'table' and o[1] == 'refused' then note(a, o[3]) end
    out[i] = o
  end
end

------------------------------------------------------------------- write

local due = NOW < renewed or NOW - renewed >= EXPIRY * 250
local function expire(key)
  if not due then redis.call('EXPIRE', key, EXPIRY) end
end

local set = {}
local function put(field, value)
  set[#set + 1] = field
  set[#set + 1] = value
end

for p, off in pairs(moved) do put('in:' .. ARGV[7 + p], off) end

if #newids > 0 then
  steps('HSET', IDS, newids)
  put('max', top)
  if lasttime > 0 then put('lt', F(lasttime)) end
  if policy ~= toppolicy then put('pol', toppolicy) end
  policy = toppolicy
  if startmax == gen then expire(IDS) end
  if not tail then expire(LOG) end
end

if next(dirty) then
  local pairs_ = {}
  for user in pairs(dirty) do
    pairs_[#pairs_ + 1] = user
    pairs_[#pairs_ + 1] = tm_member_text(members[user])
  end
  steps('HSET', MEM, pairs_)
  expire(MEM)
end

if #owns > 0 then
  steps('ZADD', OWN, owns)
  expire(OWN)
end

if next(reads) then
  local scores, new = {}, 0
  for user, seq in pairs(reads) do
    scores[#scores + 1] = F(seq)
    scores[#scores + 1] = user
  end
  for i = 1, #scores, STEP do
    new = new + redis.call('ZADD', READ, 'GT', unpack(scores, i, math.min(i + STEP - 1, #scores)))
  end
  if new > 0 then expire(READ) end
  for user in pairs(cleared) do tm_raise_read(READ, OWN, user, reads[user]) end
end

-- A list of own messages that outgrew its bound loses its oldest, and the read
-- watermark rises to it: an advance to be appended like any mark. One that is
-- full is said again with a repeated message, whose first answer may be lost.
for user, i in pairs(senders) do
  local lo, hi = '[' .. user .. NUL, '(' .. user .. SOH
  local count = redis.call('ZLEXCOUNT', OWN, lo, hi)
  local read = 0
  if count > MAXOWN then
    local dropped = redis.call('ZRANGEBYLEX', OWN, lo, hi, 'LIMIT', count - MAXOWN - 1, 1)[1]
    read = tonumber(string.sub(dropped, -16), 16)
    if tm_raise_read(READ, OWN, user, read) > 0 then expire(READ) end
  elseif count == MAXOWN and type(out[i]) == 'table' then
    read = tonumber(redis.call('ZSCORE', READ, user) or '0')
  end
  if read > 0 then
    if type(out[i]) == 'number' then out[i] = outcome('accepted', out[i]) end
    out[i][9] = read
  end
end

if #refs > 0 then
  steps('HSET', REF, refs)
  expire(REF)
end
if min ~= startmin then put('min', F(min)) end
if touchedrev then expire(REV) end

if max - gen >= HORIZON then
  redis.call('DEL', OLDIDS)
  redis.pcall('RENAME', IDS, OLDIDS)
  gen, old, rotated = max, '1', true
  -- Tombstones are kept as far back as the hot log can reach.
  local gone = {}
  for _, s in ipairs(redis.call('HKEYS', REV)) do
    if tonumber(s) <= max - tonumber(ARGV[6]) - HORIZON then gone[#gone + 1] = s end
  end
  steps('HDEL', REV, gone)
end

local hasnow = (#refs > 0 or hasrefs) and '1' or '0'
if due or rotated or hasnow ~= hadrefs or policy ~= hadpolicy or override ~= hadoverride then
  if due then renewed = NOW end
  put('own', F(gen) .. ' ' .. old .. ' ' .. hasnow .. ' ' .. F(renewed) .. ' ' .. policy .. ' ' .. F(override))
end
-- Until this batch's place is settled, what stands here may be in no log yet. The
-- mark only rises: who dies before that leaves it to the next owner, whose
-- batches are cut otherwise.
local place, number = ARGV[#ARGV - 1], ARGV[#ARGV]
if place ~= '' then
  local had, n = string.match(meta[8 + PARTS] or '', '^(.*)|(%d+)$')
  if had ~= place or tonumber(n) < tonumber(number) then put('bt', place .. '|' .. number) end
end
-- What the log was left with: it has max - base messages.
local count = redis.call('XLEN', LOG)
if count >= tonumber(ARGV[6]) + SLACK then count = count - redis.call('XTRIM', LOG, 'MAXLEN', '~', ARGV[6]) end
local base = F(max - count)
if base ~= meta[9 + PARTS] then put('base', base) end
if #set > 0 then redis.call('HSET', META, unpack(set)) end
if due then
  for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, EXPIRY) end
end

local reply = {'ok', max, startmin, startpolicy}
for i, o in ipairs(out) do reply[i + 4] = o end
return reply
