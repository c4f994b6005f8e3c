-- Looks at what Redis holds of one conversation. Reads only; each reply is of
-- one moment, and says nothing unless Redis may be believed at that moment.
--
-- KEYS  1 meta  2 log  3 rev  4 mem  5 read  6 rcpt
-- ARGV  1 incarnation ("" = ask the server)  2 what to look at, then
--       head
--       entries  first, last, most entries; at most 1,000 seqs wide for tombstones
--       members  users...
--       users    cursor, about how many
-- Reply {"cold"}
--    or {"warm", ...}, all of it text:
--       head     token, complete, min, max, repair number, policy, what the conversation says of the policy (a number, as
--                watermark.PolicyChanged.Code gives it), first and last id of the log ("" = none)
--       entries  ("m", seq, header, body | "t", seq, tombstone, "")...
--       members  complete, max, (text, read, receipt)... with "" for what is not there
--       users    next cursor ("0" = that was all), users...

local inc = ARGV[1]
if inc == '' then
  inc = string.match(redis.call('INFO', 'replication'), 'master_replid:(%w+)') or ''
end
local m = redis.call('HMGET', KEYS[1], 'inc', 'st', 'tok', 'full', 'min', 'max', 'rn', 'pol', 'own')
if m[2] ~= 'warm' or m[1] ~= inc then
  return { 'cold' }
end
local complete = m[4] == '1' and '1' or '0'
local out = { 'warm' }
local function put(v) out[#out + 1] = v or '' end

local look = {}

function look.head()
  put(m[3]) put(complete) put(m[5]) put(m[6]) put(m[7]) put(m[8])
  put(m[9] and string.match(m[9], '^%d+ %d %d %d+ %d ?(%d*)$'))
  local first = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', 1)[1]
  local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
  put(first and first[1]) put(last and last[1])
end

function look.entries()
  local from, to = ARGV[3], ARGV[4]
  for _, e in ipairs(redis.call('XRANGE', KEYS[2], from .. '-0', to .. '-0', 'COUNT', ARGV[5])) do
    local header, body = '', ''
    for i = 1, #e[2], 2 do
      if e[2][i] == 'h' then header = e[2][i + 1] elseif e[2][i] == 'b' then body = e[2][i + 1] end
    end
    put('m') put(e[1]) put(header) put(body)
  end
  local first, last = tonumber(from), tonumber(to)
  last = math.min(last, first + 999)
  if first > last or redis.call('EXISTS', KEYS[3]) == 0 then return end
  local seqs = {}
  for s = first, last do seqs[#seqs + 1] = string.format('%.0f', s) end
  for i, text in ipairs(redis.call('HMGET', KEYS[3], unpack(seqs))) do
    if text then put('t') put(seqs[i]) put(text) put('') end
  end
end

function look.members()
  put(complete) put(m[6])
  for i = 3, #ARGV do
    put(redis.call('HGET', KEYS[4], ARGV[i]))
    put(redis.call('ZSCORE', KEYS[5], ARGV[i]))
    put(redis.call('ZSCORE', KEYS[6], ARGV[i]))
  end
end

function look.users()
  local page = redis.call('HSCAN', KEYS[4], ARGV[3], 'COUNT', ARGV[4])
  put(page[1])
  for i = 1, #page[2], 2 do put(page[2][i]) end
end

look[ARGV[2]]()
return out
