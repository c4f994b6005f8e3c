-- Prelude of every script: what Go's side of this package has, in Lua.
--
-- Numbers leave Lua only by F, since tostring rounds to 14 digits.

local function F(n) return string.format('%.0f', n) end

-- Token of the server that runs the script: new at every restart and every
-- promotion. given stands for it where the server has none.
local function tm_incarnation(given)
  if given ~= '' then return given end
  return string.match(redis.call('INFO', 'replication'), 'master_replid:(%w+)') or ''
end

-- What may be believed of a conversation: 'warm', 'warming', or why it is
-- cold: 'absent', 'incarnation'. inc and st are the meta's fields of that name.
local function tm_state(inc, st, given)
  if not inc or not st then return 'absent' end
  if inc ~= tm_incarnation(given) then return 'incarnation' end
  return st
end

-- Member of the list of own messages, and the bounds of a user's.
local NUL, SOH = string.char(0), string.char(1)
local function tm_own(user, seq) return user .. NUL .. string.format('%016x', seq) end

-- Raises a user's read watermark, never lowers it, and drops the own messages
-- that it passes.
local function tm_raise_read(readkey, ownkey, user, seq)
  local added = redis.call('ZADD', readkey, 'GT', F(seq), user)
  redis.call('ZREMRANGEBYLEX', ownkey, '[' .. user .. NUL, '[' .. tm_own(user, seq))
  return added
end

-- Member text to table {v, last, w = {{number, lower, upper}...}, ops =
-- {'op;edge'...}, a = 'name;value,...'} and back; '-' is a user who never had a window, v = 0.
local function tm_member(text)
  local m = {v = 0, last = 0, w = {}, ops = {}, a = ''}
  if text == '-' then return m end
  local v, last, w, ops, a = string.match(text, '^(%d+)|(%d+)|([^|]*)|([^|]*)|?(.*)$')
  m.v, m.last, m.a = tonumber(v), tonumber(last), a
  for n, lo, hi in string.gmatch(w, '(%d+):(%d+):(%d+)') do
    m.w[#m.w + 1] = {tonumber(n), tonumber(lo), tonumber(hi)}
  end
  for op in string.gmatch(ops, '[^,]+') do m.ops[#m.ops + 1] = op end
  return m
end

local function tm_member_text(m)
  if m.v == 0 then return '-' end
  local w = {}
  for i, x in ipairs(m.w) do w[i] = F(x[1]) .. ':' .. F(x[2]) .. ':' .. F(x[3]) end
  return F(m.v) .. '|' .. F(m.last) .. '|' .. table.concat(w, ',') .. '|' .. table.concat(m.ops, ',')
    .. (m.a ~= '' and '|' .. m.a or '')
end

-- Version that a member's text has, without parsing the rest.
local function tm_version(text)
  return tonumber(string.match(text, '^(%d+)|') or '0')
end
