-- Raises read marks and receipts, where the conversation is warm or warming.
--
-- KEYS  1 meta  2 mem  3 read  4 rcpt  5 own ... all keys that share the expiry
-- ARGV  1 incarnation ("" = ask the server)  2 expiry, seconds
--       then per member: user, read, receipt (0 leaves one as it is)
-- Reply "raised", or "cold" with nothing changed
--
-- A mark for a user that is not among the members is kept: a score is not
-- knowledge, and whoever loads the member merges by max.

local m = redis.call('HMGET', KEYS[1], 'inc', 'st')
local state = tm_state(m[1], m[2], ARGV[1])
if state ~= 'warm' and state ~= 'warming' then
  return 'cold'
end
for i = 3, #ARGV, 3 do
  local user, read, receipt = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  hot_raise(KEYS[4], user, receipt)
  if read ~= '0' then
    tm_raise_read(KEYS[3], KEYS[5], user, tonumber(read))
  end
end
hot_touch(ARGV[2])
return 'raised'
