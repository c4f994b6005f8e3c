-- What the scripts of this package share, after the prelude.

-- The meta of a conversation that may be believed; else nil and why not.
local function hot_warm(key, given)
  local m = redis.call('HMGET', key, 'inc', 'st', 'tok', 'full', 'min', 'max', 'rn', 'rf', 'pol', 'lt', 'bt')
  local state = tm_state(m[1], m[2], given)
  if state ~= 'warm' then
    return nil, state
  end
  return {
    token = m[3] or '', complete = m[4] == '1', min = m[5] or '0', max = m[6] or '0',
    repair = m[7] or '0', from = m[8] or '0', policy = m[9] or '0', time = m[10] or '0',
    place = m[11] or '',
  }
end

-- Raises a mark, which is text; '0' leaves it as it is.
local function hot_raise(key, user, mark)
  if mark ~= '0' then
    redis.call('ZADD', key, 'GT', mark, user)
  end
end

-- Sets the expiry of all keys of the conversation: a part that expired before
-- meta would be a warm conversation that forgot something.
local function hot_touch(seconds)
  for _, key in ipairs(KEYS) do
    redis.call('EXPIRE', key, seconds)
  end
end
