-- The mark that a conversation's members all have it among their crowds.
--
-- KEYS  1 crowd
-- ARGV  1 incarnation ("" = ask the server)  2 what to do  3 expiry, ms
--       "stand" sets the mark, "fall" takes it away, "standing" asks
-- Reply how long it stands yet, ms; 0: it does not, or was set before Redis
--       was restarted, promoted or restored, which may have cost entries of
--       crowds that were written before it

local server = tm_incarnation(ARGV[1])
if ARGV[2] == 'stand' then
  redis.call('SET', KEYS[1], server, 'PX', ARGV[3])
  return tonumber(ARGV[3])
elseif ARGV[2] == 'fall' then
  redis.call('DEL', KEYS[1])
  return 0
end
if redis.call('GET', KEYS[1]) ~= server then return 0 end
return math.max(redis.call('PTTL', KEYS[1]), 0)
