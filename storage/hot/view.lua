-- One user's views of several conversations. Reads only; all of it is of one moment.
--
-- KEYS  for each conversation: meta  mem  read  rcpt  own
-- ARGV  1 incarnation ("" = ask the server)  2 user ("" = none)
--       then for each conversation its peer ("" = none: a group, which has no receipts)
-- Reply for each conversation one text of lines:
--       cold, why
--    or warm|partial, token, min, max, repair number, repair from, last time, policy,
--       place of the last batch, user's text, user's read, user's receipt, peer's text,
--       peer's receipt, own messages with "," between
--    where an empty line stands for what is not there. partial: the user or the peer is
--    not among the members and the members are not known to be complete.
--
-- A call costs several microseconds before it does anything, each command in it one, each
-- field of a hash a fifth of one. So conversations share a call, what is asked of a key is
-- asked at once, and what most have none of is asked for only where it counts: own
-- messages, where a repair began, whether the members are complete.

local given, user, n = ARGV[1], ARGV[2], #ARGV - 2
local call = redis.call

local owned = false
if user ~= '' then
  local keys = {}
  for i = 1, n do keys[i] = KEYS[i * 5] end
  owned = call('EXISTS', unpack(keys)) > 0
end

local out = {}
for i = 1, n do
  local k = i * 5 - 4
  local m = call('HMGET', KEYS[k], 'inc', 'st', 'tok', 'min', 'max', 'lt', 'pol', 'bt', 'rn')
  if given == '' and m[1] then
    given = tm_incarnation('')
  end
  local state = tm_state(m[1], m[2], given)
  if state ~= 'warm' then
    out[i] = 'cold\n' .. state
  else
    local peer = ARGV[i + 2]
    local status, text, read, receipt, peertext, peerreceipt, own = 'warm', '', '', '', '', '', ''
    local known = true
    if peer ~= '' then
      local texts = call('HMGET', KEYS[k + 1], user, peer)
      local marks = call('ZMSCORE', KEYS[k + 3], user, peer)
      text, peertext = texts[1] or '', texts[2] or ''
      known = text ~= '' and peertext ~= ''
      receipt, peerreceipt = marks[1] or '', marks[2] or ''
    elseif user ~= '' then
      known = call('HGET', KEYS[k + 1], user)
      text = known or ''
    end
    if not known and call('HGET', KEYS[k], 'full') ~= '1' then
      status = 'partial'
    end
    if user ~= '' then
      read = call('ZSCORE', KEYS[k + 2], user) or ''
    end
    if owned then
      local list = call('ZRANGEBYLEX', KEYS[k + 4], '(' .. tm_own(user, tonumber(read) or 0),
        '(' .. user .. SOH, 'LIMIT', 0, 1000)
      own = table.concat(list, ',')
    end
    local from = ''
    if m[9] and m[9] ~= '0' then
      from = call('HGET', KEYS[k], 'rf') or ''
    end
    out[i] = status .. '\n' .. (m[3] or '') .. '\n' .. (m[4] or '') .. '\n' .. (m[5] or '') .. '\n' .. (m[9] or '') .. '\n' .. from
      .. '\n' .. (m[6] or '') .. '\n' .. (m[7] or '') .. '\n' .. (m[8] or '') .. '\n' .. text .. '\n' .. read .. '\n' .. receipt
      .. '\n' .. peertext .. '\n' .. peerreceipt .. '\n' .. own
  end
end
return out
