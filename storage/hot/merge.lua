-- Merges loaded members into a warm conversation, if it still is the warm-up
-- that was warm before they were loaded.
--
-- KEYS  1 meta  2 mem  3 read  4 rcpt  5 own ... all keys that share the expiry
-- ARGV  1 incarnation ("" = ask the server)  2 token  3 expiry, seconds
--       4 "1" = with these, every member that exists is known  5 number of members
--       then per member: user, text, read, receipt, number of own seqs, own seqs...
--       then users known to have none
-- Reply "merged", or "stale" with nothing changed
--
-- Windows go by version, marks by max, own seqs by union. Atomic: all of it or
-- nothing.

local meta = hot_warm(KEYS[1], ARGV[1])
if not meta or meta.token ~= ARGV[2] then
  return 'stale'
end

-- The 1,000 latest own seqs stand, those above the mark only.
local function own(user, mark, from, n)
  local low, high = '[' .. user .. NUL, '(' .. user .. SOH
  for j = from, from + n - 1 do
    local seq = tonumber(ARGV[j])
    if seq > mark then
      redis.call('ZADD', KEYS[5], 0, tm_own(user, seq))
    end
  end
  local over = redis.call('ZLEXCOUNT', KEYS[5], low, high) - 1000
  if over > 0 then
    for _, member in ipairs(redis.call('ZRANGEBYLEX', KEYS[5], low, high, 'LIMIT', 0, over)) do
      redis.call('ZREM', KEYS[5], member)
    end
  end
end

local i = 6
for _ = 1, tonumber(ARGV[5]) do
  local user, text, read, receipt, n = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], tonumber(ARGV[i + 4])
  i = i + 5
  local old = redis.call('HGET', KEYS[2], user)
  if not old or tm_version(old) < tm_version(text) then
    redis.call('HSET', KEYS[2], user, text)
  end
  hot_raise(KEYS[4], user, receipt)
  if read ~= '0' then
    tm_raise_read(KEYS[3], KEYS[5], user, tonumber(read))
  end
  if n > 0 then
    own(user, tonumber(redis.call('ZSCORE', KEYS[3], user) or '0'), i, n)
    i = i + n
  end
end
for j = i, #ARGV do
  redis.call('HSETNX', KEYS[2], ARGV[j], '-')
end
if ARGV[4] == '1' then
  redis.call('HSET', KEYS[1], 'full', '1')
end
hot_touch(ARGV[3])
return 'merged'
