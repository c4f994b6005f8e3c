-- Who has read a seq, a page at a time, by ascending (read mark, user), and how
-- many there are. Reads only.
--
-- KEYS  1 meta  2 read  3 mem
-- ARGV  1 incarnation ("" = ask the server)  2 seq  3 most readers (0 = count only)
--       4 read mark and 5 user after which to go on ("0", "" = from the start)
-- Reply {"unknown"} where Redis does not know all members
--    or {"known", count, user, read mark, text, user, read mark, text, ...}
--    where text is the member's, "-" for who never had a window
--
-- Marks only rise, so a reader that moves between two pages moves ahead: it may
-- come again, none is left out.

-- Sets order their members by bytes; Lua's own comparison goes by the server's
-- locale.
local function after(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then
      return x > y
    end
  end
  return #a > #b
end

local meta = hot_warm(KEYS[1], ARGV[1])
if not meta or not meta.complete then
  return { 'unknown' }
end
local out = { 'known', redis.call('ZCOUNT', KEYS[2], ARGV[2], '+inf') }
local most = tonumber(ARGV[3])
if most == 0 then
  return out
end

-- rank of the first reader of the page: below it are all lower marks and, of
-- the cursor's own mark, the users up to the cursor. Many may have the same
-- mark (everybody read the latest message), so that place is found by halving.
local start = redis.call('ZCOUNT', KEYS[2], '-inf', '(' .. ARGV[2])
local mark, user = ARGV[4], ARGV[5]
if tonumber(mark) >= tonumber(ARGV[2]) then
  local low = redis.call('ZCOUNT', KEYS[2], '-inf', '(' .. mark)
  local high = low + redis.call('ZCOUNT', KEYS[2], mark, mark)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if after(redis.call('ZRANGE', KEYS[2], middle, middle)[1], user) then
      high = middle
    else
      low = middle + 1
    end
  end
  start = low
end
local page = redis.call('ZRANGE', KEYS[2], start, start + most - 1, 'WITHSCORES')
for i = 1, #page, 2 do
  out[#out + 1] = page[i]
  out[#out + 1] = page[i + 1]
  out[#out + 1] = redis.call('HGET', KEYS[3], page[i]) or '-'
end
return out
