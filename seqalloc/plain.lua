-- plain: the batches that nearly every call brings, of many conversations.
--
-- KEYS  six for each conversation: meta log mem ids0 ids1 read
-- ARGV  1 incarnation ('' = ask the server)  2 now in ms
--       3 field of the meta that has the input partition's mark
--       4 place and number of the batches, '' = none, see 'bt' in malloc.lua
--       and for each conversation <floor> <offset of its first input> <offset
--       of its last one> <number of messages> <newest time>, then
--         of one message   <user> <id> <hash> <header> <body>
--         of several       <number of users>, for each of them <user> <place of
--                          its last message, from 1>, and for each message
--                          <id> <hash> <header> <body>
-- Reply for each conversation: counter and minimum behind the batch, of which all
--       messages are accepted with the seqs up to the counter; 0, 0 where it must go to malloc.
--
-- Constants that Go writes before this text: as in malloc.lua, and EXPIRY and HOTLOG.
--
-- It takes batches of nothing but fresh messages of one input partition (the
-- caller sees to that), under advance_on_send, each by a known member with an
-- open window and under an id that nobody sent yet, where nothing is due.
-- Whatever is otherwise, and whatever cannot be believed, is left to malloc,
-- with nothing written: what passes here is decided as it would be there.
--
-- A message costs a handful of microseconds beyond its commands, so no table and
-- no pattern is made that it does not need.

local call, try, match, format, unpack = redis.call, redis.pcall, string.match, string.format, unpack
local KEYS, ARGV = KEYS, ARGV
local inc, NOW, PART, PLACE = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
if inc == '' then inc = match(call('INFO', 'replication'), 'master_replid:(%w+)') or '' end

-- Whether a user may send, whose text is not '-': is open below.
local function open(text, full)
  if not text then return full == '1' end
  local newest, w, hi = match(text, '^%d+|(%d+)|[^|]-(%d+):%d+:(%d+)|')
  return newest and w == newest and hi == '0'
end

-- Decides the batch of the conversation whose keys begin at k and whose
-- arguments begin at a. What is asked once for a batch is not handed over with
-- each message: a word takes Redis a third of a microsecond.
local function decide(k, a, n)
  local META, LOG, IDS = KEYS[k], KEYS[k + 1], KEYS[k + 3]
  local meta = call('HMGET', META, 'inc', 'st', 'max', 'own', 'base', PART, 'bt', 'lt', 'min', 'full')
  if meta[1] ~= inc or meta[2] ~= 'warm' or not meta[5] then return 0, 0 end

  -- Only with no ref, and the policy as the meta says it.
  local gen, old, renewed = match(meta[4], '^(%d+) (%d) 0 (%d+) 0 0$')
  if not gen then return 0, 0 end
  local max = tonumber(meta[3])
  local age = NOW - renewed
  if max + n - gen >= HORIZON or max == tonumber(gen) or max + n > MAXSEQ
    or age < 0 or age >= EXPIRY * 250 or max < tonumber(ARGV[a])
    or tonumber(ARGV[a + 1]) <= tonumber(meta[6] or '-1') then return 0, 0 end

  -- The log has as many messages as it was left with and takes, below, the one
  -- that follows the counter: so both end at the same seq.
  local count = max - meta[5]
  if count == 0 or call('XLEN', LOG) ~= count then return 0, 0 end

  -- The mark of one place only rises, see malloc. Numbers have no zeros before
  -- them, so a shorter one is a lower one; where the places differ either way is right.
  local had = meta[7]
  if had and (#had > #PLACE or #had == #PLACE and had > PLACE) and PLACE ~= '' then return 0, 0 end

  local MEM, seq, added = KEYS[k + 2], nil, nil
  if n == 1 then
    local user, id = ARGV[a + 5], ARGV[a + 6]
    local text = call('HGET', MEM, user)
    if text ~= '-' and not open(text, meta[10]) then return 0, 0 end
    if old == '1' and call('HGET', KEYS[k + 4], id) then return 0, 0 end
    seq = format(max < 2147483647 and '%d' or '%.0f', max + 1)
    if call('HSETNX', IDS, id, ARGV[a + 7] .. seq) == 0 then return 0, 0 end
    if type(try('XADD', LOG, seq .. '-0', 'h', ARGV[a + 8], 'b', ARGV[a + 9])) == 'table' then
      call('HDEL', IDS, id)
      return 0, 0
    end
    added = call('ZADD', KEYS[k + 5], 'GT', seq, user)
  else
    local form = max + n < 2147483648 and '%d' or '%.0f'
    local marks, b = {}, a + 6
    for i = 1, 2 * tonumber(ARGV[a + 5]), 2 do
      local user = ARGV[b]
      local text = call('HGET', MEM, user)
      if text ~= '-' and not open(text, meta[10]) then return 0, 0 end
      marks[i], marks[i + 1] = format(form, max + ARGV[b + 1]), user
      b = b + 2
    end
    local seqs, ids, new, w = {}, {}, {}, b
    for i = 1, n do
      seq = format(form, max + i)
      seqs[i], ids[i] = seq, ARGV[w]
      new[2 * i - 1], new[2 * i] = ARGV[w], ARGV[w + 1] .. seq
      w = w + 4
    end
    local sent = call('HMGET', IDS, unpack(ids))
    for i = 1, n do
      if sent[i] then return 0, 0 end
    end
    if old == '1' then
      sent = call('HMGET', KEYS[k + 4], unpack(ids))
      for i = 1, n do
        if sent[i] then return 0, 0 end
      end
    end
    -- None of them stands, so as many are new as there are, unless one is there twice.
    if call('HSET', IDS, unpack(new)) ~= n then
      call('HDEL', IDS, unpack(ids))
      return 0, 0
    end
    for i = 1, n do
      if type(try('XADD', LOG, seqs[i] .. '-0', 'h', ARGV[b + 2], 'b', ARGV[b + 3])) == 'table' then
        -- Where a later one is turned down the log is ahead of the counter, and
        -- malloc says cold.
        call('HDEL', IDS, unpack(ids))
        return 0, 0
      end
      b = b + 4
    end
    added = call('ZADD', KEYS[k + 5], 'GT', unpack(marks))
  end
  if added > 0 then call('EXPIRE', KEYS[k + 5], EXPIRY) end

  local newest = meta[8] or '0'
  if tonumber(ARGV[a + 4]) > tonumber(newest) then newest = ARGV[a + 4] end
  if PLACE == '' then
    call('HSET', META, 'max', seq, PART, ARGV[a + 2], 'lt', newest)
  else
    call('HSET', META, 'max', seq, PART, ARGV[a + 2], 'lt', newest, 'bt', PLACE)
  end
  if count + n >= HOTLOG + SLACK then
    local gone = call('XTRIM', LOG, 'MAXLEN', '~', HOTLOG)
    if gone > 0 then call('HINCRBY', META, 'base', gone) end
  end
  return max + n, tonumber(meta[9] or '0')
end

local out, a = {}, 5
for c = 1, #KEYS / 6 do
  local n = tonumber(ARGV[a + 3])
  out[2 * c - 1], out[2 * c] = decide(6 * c - 5, a, n)
  a = a + (n == 1 and 10 or 6 + 2 * ARGV[a + 5] + 4 * n)
end
return out
