-- begin: makes a conversation empty and warming under a fresh token.
--
-- KEYS  1 meta  2 log  3 read  4 rcpt  5 mem  6 ids0  7 ids1  8 own  9 rev  10 ref
-- ARGV  1 incarnation ('' = ask the server)  2 expiry in s  3 token
-- Reply 1
-- Atomicity: whoever reads in between sees the conversation as it was, or cold.
-- Marks that come from now on raise the new, empty sets.

local inc = tm_incarnation(ARGV[1])
redis.call('DEL', unpack(KEYS))
redis.call('HSET', KEYS[1], 'inc', inc, 'st', 'warming', 'tok', ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
