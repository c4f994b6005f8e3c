-- plain: the batch that nearly every call brings, decided before anything else
-- is made. KEYS and ARGV as in malloc.lua, of which this is the beginning.
--
-- It takes a batch of nothing but fresh messages of one input partition (the
-- caller says so by the last argument), each of a known member with an open
-- window and under an id that nobody sent yet, where nothing is due. Whatever is
-- otherwise, and whatever cannot be believed, is left to what follows, with
-- nothing written: what passes here is decided as it would be there.
--
-- A closure costs as much as a command, so there are none, and no table that a
-- single message does not need.
--
-- Reply {'run', max, min}: all are accepted, with the seqs up to max.

local N = #ARGV
repeat
  if ARGV[N] ~= '1' or ARGV[N - 3] ~= '' or ARGV[5] ~= '0' then break end
  local call, META, LOG, IDS = redis.call, KEYS[1], KEYS[2], KEYS[6]
  local PART = 'in:' .. ARGV[8]
  local meta = call('HMGET', META, 'inc', 'st', 'max', 'min', 'full', 'lt', 'own', 'bt', 'base', PART)
  if meta[2] ~= 'warm' or not meta[1] or not meta[9] then break end
  local inc = ARGV[1]
  if inc == '' then inc = string.match(call('INFO', 'replication'), 'master_replid:(%w+)') end
  if meta[1] ~= inc then break end

  -- Only with no ref, and the policy as the meta says it.
  local gen, old, renewed = string.match(meta[7], '^(%d+) (%d) 0 (%d+) 0 0$')
  if not gen then break end
  local n, max = (N - 12) / 9, tonumber(meta[3])
  local age = ARGV[3] - renewed
  if n > 500 or max + n - gen >= HORIZON or max + n > MAXSEQ or max == tonumber(gen)
    or age < 0 or age >= ARGV[2] * 250 or max < tonumber(ARGV[4])
    or tonumber(ARGV[11]) <= tonumber(meta[10] or '-1') then break end

  -- The log has as many messages as it was left with and takes, below, the one
  -- that follows the counter: so both end at the same seq.
  local count = max - meta[9]
  if count == 0 or call('XLEN', LOG) ~= count then break end

  local user, tops, fit = nil, nil, true -- tops: user -> its last seq
  for a = 12, N - 4, 9 do
    if ARGV[a] ~= user and not (tops and tops[ARGV[a]]) then
      user = ARGV[a]
      local text = call('HGET', KEYS[5], user)
      if not text then
        fit = meta[5] == '1'
      elseif text ~= '-' then
        local newest, w, hi = string.match(text, '^%d+|(%d+)|[^|]-(%d+):%d+:(%d+)|')
        fit = newest ~= nil and w == newest and hi == '0'
      end
      if not fit then break end
      if n > 1 then
        tops = tops or {}
        tops[user] = true
      end
    end
  end
  if not fit then break end

  local seq
  local time, at = tonumber(meta[6] or '0'), nil
  if n == 1 then
    local id = ARGV[13]
    if old == '1' and call('HGET', KEYS[7], id) then break end
    seq = string.format(max < 2147483647 and '%d' or '%.0f', max + 1)
    if call('HSETNX', IDS, id, ARGV[14] .. seq) == 0 then break end
    if type(redis.pcall('XADD', LOG, seq .. '-0', 'h', ARGV[16], 'b', ARGV[17])) == 'table' then
      call('HDEL', IDS, id)
      break
    end
    if tonumber(ARGV[15]) > time then at = 15 end
    if call('ZADD', KEYS[3], 'GT', seq, user) == 1 then call('EXPIRE', KEYS[3], ARGV[2]) end
  else
    local ids, twice = {}, {}
    for k = 1, n do
      local id = ARGV[9 * k + 4]
      if twice[id] then fit = false end
      ids[k], twice[id] = id, true
    end
    if not fit then break end
    local sent = call('HMGET', IDS, unpack(ids))
    local before = old == '1' and call('HMGET', KEYS[7], unpack(ids))
    for k = 1, n do
      if sent[k] or before and before[k] then fit = false end
    end
    if not fit then break end

    local form, new = max + n < 2147483648 and '%d' or '%.0f', {}
    for k = 1, n do
      local a = 9 * k
      seq = string.format(form, max + k)
      if type(redis.pcall('XADD', LOG, seq .. '-0', 'h', ARGV[a + 7], 'b', ARGV[a + 8])) == 'table' then
        fit = false
        break
      end
      new[2 * k - 1], new[2 * k] = ids[k], ARGV[a + 5] .. seq
      tops[ARGV[a + 3]] = seq
      local t = tonumber(ARGV[a + 6])
      if t > time then time, at = t, a + 6 end
    end
    -- Where the first one was turned down nothing is written yet; where a later
    -- one was, the log is ahead of the counter, and what follows says cold.
    if not fit then break end
    call('HSET', IDS, unpack(new))
    local marks, k = {}, 0
    for who, top in pairs(tops) do
      marks[k + 1], marks[k + 2], k = top, who, k + 2
    end
    if call('ZADD', KEYS[3], 'GT', unpack(marks)) > 0 then call('EXPIRE', KEYS[3], ARGV[2]) end
  end

  local newest = at and ARGV[at] or meta[6] or '0'
  local place, had = ARGV[N - 2], meta[8]
  if place == '' then
    call('HSET', META, 'max', seq, PART, ARGV[N - 10], 'lt', newest)
  else
    -- The mark of one place only rises, see malloc.
    local mark = place .. '|' .. ARGV[N - 1]
    if had and string.sub(had, 1, #place + 1) == place .. '|' and tonumber(string.sub(had, #place + 2)) > tonumber(ARGV[N - 1]) then
      mark = had
    end
    call('HSET', META, 'max', seq, PART, ARGV[N - 10], 'lt', newest, 'bt', mark)
  end
  if count + n >= ARGV[6] + SLACK then
    local gone = call('XTRIM', LOG, 'MAXLEN', '~', ARGV[6])
    if gone > 0 then call('HINCRBY', META, 'base', gone) end
  end
  do return {'run', max + n, tonumber(meta[4] or '0')} end
until true
