-- One user's view of one conversation. Reads only; all of it is of one moment.
--
-- KEYS  1 meta  2 mem  3 read  4 rcpt  5 own
-- ARGV  1 incarnation ("" = ask the server)  2 user ("" = none)
--       3 peer ("" = none: a group, which has no receipts)
-- Reply {"cold", why}
--    or {"warm"|"partial", token, min, max, repair number, repair from, last time, policy,
--        user's text, user's read, user's receipt, {own...}, peer's text, peer's receipt,
--        place of the last batch}
--    where "" stands for what is not there. partial: the user or the peer is
--    not among the members and the members are not known to be complete.

local meta, why = hot_warm(KEYS[1], ARGV[1])
if not meta then
  return { 'cold', why }
end

local status = 'warm'
local function member(user)
  local text = redis.call('HGET', KEYS[2], user)
  if not text then
    if not meta.complete then
      status = 'partial'
    end
    return ''
  end
  return text
end

local text, read, receipt, own, peertext, peerreceipt = '', '', '', {}, '', ''
local user, peer = ARGV[2], ARGV[3]
if user ~= '' then
  text = member(user)
  read = redis.call('ZSCORE', KEYS[3], user) or ''
  own = redis.call('ZRANGEBYLEX', KEYS[5], '(' .. tm_own(user, tonumber(read) or 0),
    '(' .. user .. SOH, 'LIMIT', 0, 1000)
end
if peer ~= '' then
  peertext = member(peer)
  receipt = redis.call('ZSCORE', KEYS[4], user) or ''
  peerreceipt = redis.call('ZSCORE', KEYS[4], peer) or ''
end

return { status, meta.token, meta.min, meta.max, meta.repair, meta.from, meta.time, meta.policy,
  text, read, receipt, own, peertext, peerreceipt, meta.place }
