-- Token of a conversation's warm-up. Reads only.
--
-- KEYS  1 meta
-- ARGV  1 incarnation ("" = ask the server)
-- Reply the token, "" where the conversation may not be believed

local meta = hot_warm(KEYS[1], ARGV[1])
return meta and meta.token or ''
