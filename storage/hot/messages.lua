-- Messages and tombstones of a range, from a conversation that may be believed.
-- Reads only. Checking and reading are one script, so that a log which fell
-- back, or belongs to another incarnation, is never read.
--
-- KEYS  1 meta  2 log  3 rev
-- ARGV  1 incarnation ("" = ask the server)  2 first  3 last  4 "begin"|"end": the edge to keep
--       5 most seqs  6 most bytes
-- Reply {"cold", why}
--    or {"warm", seq, "m", header, body, seq, "t", tombstone text, "", ...}
--       from the kept edge on. Only seqs within the conversation's bounds; at
--       most ARGV[5] seqs wide, whatever the range says; stops before the entry
--       that would exceed ARGV[6] bytes, but for the first.

local meta, why = hot_warm(KEYS[1], ARGV[1])
if not meta then
  return { 'cold', why }
end

local first = math.max(tonumber(ARGV[2]), tonumber(meta.min), 1)
local last = math.min(tonumber(ARGV[3]), tonumber(meta.max))
local most, budget = tonumber(ARGV[5]), tonumber(ARGV[6])
local command, from, to, step = 'XREVRANGE', 0, 0, -1
if ARGV[4] == 'begin' then
  last = math.min(last, first + most - 1)
  command, from, to, step = 'XRANGE', first, last, 1
else
  first = math.max(first, last - most + 1)
  from, to = last, first
end
local out = { 'warm' }
if first > last then
  return out
end

-- The entries of a page are fetched a few at a time, since a body may be large
-- and the budget may end the page early.
local chunk, entries, at, drained = 32, {}, 1, false
local cursor = from
local function peek()
  if at > #entries and not drained then
    entries = redis.call(command, KEYS[2], F(cursor) .. '-0', F(to) .. '-0', 'COUNT', chunk)
    at = 1
    drained = #entries < chunk
    if #entries > 0 then
      cursor = tonumber(string.match(entries[#entries][1], '^%d+')) + step
      drained = drained or (to - cursor) * step < 0
    end
  end
  return entries[at]
end

local revoked = redis.call('HLEN', KEYS[3]) > 0
local used = 0
for seq = from, to, step do
  local entry = peek()
  local id = F(seq)
  local kind, a, b = nil, '', ''
  if entry and string.match(entry[1], '^%d+') == id then
    at = at + 1
    local fields = entry[2]
    for i = 1, #fields, 2 do
      if fields[i] == 'h' then a = fields[i + 1] elseif fields[i] == 'b' then b = fields[i + 1] end
    end
    kind = 'm'
  elseif not entry and not revoked then
    break
  end
  -- A tombstone wins over an entry: what was revoked is never shown again.
  local text = revoked and redis.call('HGET', KEYS[3], id)
  if text then
    kind, a, b = 't', text, ''
  end
  if kind then
    used = used + #a + #b
    if used > budget and #out > 1 then
      break
    end
    local n = #out
    out[n + 1], out[n + 2], out[n + 3], out[n + 4] = id, kind, a, b
  end
end
return out
