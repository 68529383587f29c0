-- Under an ID all commands see one instant, now: Redis reads its clock for each PTTL and each
-- expiry, so that a grant and the state that it was charged to, which are compared, could
-- be a millisecond apart. In place of the commands that depend on the time, steps use
-- these functions, and the TIME that was read first. Without an ID there is no instant.
local call, now, time, rest = redis.call

local function pttl(key)
  if not now then return call('PTTL', key) end
  local expiry = redis.pcall('PEXPIRETIME', key)
  if type(expiry) == 'number' then return expiry < 0 and expiry or math.max(expiry - now, 0) end
  -- Before Redis 7: exact if the clock's millisecond is the same before and after.
  local before, left, after
  repeat
    before, left, after = call('TIME'), call('PTTL', key), call('TIME')
  until left < 0 or before[1] == after[1] and math.floor(before[2] / 1000) == math.floor(after[2] / 1000)
  return left < 0 and left or math.max(before[1] * 1000 + math.floor(before[2] / 1000) + left - now, 0)
end

local function set(key, value, px, left)
  if not left then -- KEEPTTL
    call('SET', key, value, px)
  elseif not now then
    call('SET', key, value, px, left)
  elseif redis.pcall('SET', key, value, 'PXAT', now + left).err then -- before Redis 6.2
    call('SET', key, value)
    call('PEXPIREAT', key, now + left)
  end
end
