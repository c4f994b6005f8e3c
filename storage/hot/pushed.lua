-- Raises the push mark of a conversation.
--
-- KEYS  1 pushed
-- ARGV  1 seq  2 offset  3 expiry, seconds
-- Reply "raised"; each part keeps its highest value.

for i, field in ipairs({ 'seq', 'offset' }) do
  local old = redis.call('HGET', KEYS[1], field)
  if not old or tonumber(old) < tonumber(ARGV[i]) then
    redis.call('HSET', KEYS[1], field, ARGV[i])
  end
end
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 'raised'
