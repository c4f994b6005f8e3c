-- install: fills a warming conversation with its truth and makes it warm.
--
-- KEYS  1 meta  2 log  3 read  4 rcpt  5 mem  6 ids0  7 ids1  8 own  9 rev  10 ref
-- ARGV  1 incarnation ('' = ask the server)  2 expiry in s  3 token
--       4-7 number of meta fields, of members, of own messages, of sent ids
--       8... <field> <value>, <user> <member text> <read> <receipt>, <own
--       member>, <sent id> <value>
-- Reply 1, or 0 when the token no longer stands: somebody else began.
-- Atomicity: everything or nothing. Marks that were raised since begin stay,
-- since they only rise.

local META, LOG, READ, RCPT, MEM, IDS, OLDIDS, OWN, REV, REF = unpack(KEYS)
local meta = redis.call('HMGET', META, 'inc', 'st', 'tok')
if tm_state(meta[1], meta[2], ARGV[1]) ~= 'warming' or meta[3] ~= ARGV[3] then return 0 end

-- Lists are flushed in steps, since unpack() has a limit.
local STEP = 1000
local function adder(...)
  local head, list = {...}, {}
  local function flush()
    if #list == 0 then return end
    local call = {}
    for i, v in ipairs(head) do call[i] = v end
    for _, v in ipairs(list) do call[#call + 1] = v end
    redis.call(unpack(call))
    list = {}
  end
  return function(a, b)
    list[#list + 1] = a
    list[#list + 1] = b
    if #list >= STEP then flush() end
  end, flush
end

local i = 8
local field, fields_done = adder('HSET', META)
for _ = 1, tonumber(ARGV[4]) do
  field(ARGV[i], ARGV[i + 1])
  i = i + 2
end

local mem, mem_done = adder('HSET', MEM)
local read, read_done = adder('ZADD', READ, 'GT')
local rcpt, rcpt_done = adder('ZADD', RCPT, 'GT')
for _ = 1, tonumber(ARGV[5]) do
  local user, text = ARGV[i], ARGV[i + 1]
  -- Somebody may have loaded the member meanwhile; the higher version stands.
  local old = redis.call('HGET', MEM, user)
  if not old or tm_version(old) < tm_version(text) then mem(user, text) end
  if ARGV[i + 2] ~= '0' then read(ARGV[i + 2], user) end
  if ARGV[i + 3] ~= '0' then rcpt(ARGV[i + 3], user) end
  i = i + 4
end
mem_done()
read_done()
rcpt_done()

local own, own_done = adder('ZADD', OWN)
local owners = {}
for _ = 1, tonumber(ARGV[6]) do
  own('0', ARGV[i])
  owners[string.match(ARGV[i], '^[^%z]+')] = true
  i = i + 1
end
own_done()
for user in pairs(owners) do
  local mark = redis.call('ZSCORE', READ, user)
  if mark then tm_raise_read(READ, OWN, user, tonumber(mark)) end
end

local id, id_done = adder('HSET', IDS)
for _ = 1, tonumber(ARGV[7]) do
  id(ARGV[i], ARGV[i + 1])
  i = i + 2
end
id_done()

field('st', 'warm')
fields_done()
for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, ARGV[2]) end
return 1
