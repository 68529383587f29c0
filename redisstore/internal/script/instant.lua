-- Under an ID all commands see one instant, now: Redis reads its clock for each PTTL and each
-- expiry, so that a grant and the state that it was charged to, which are compared, could
-- be a millisecond apart. In place of the commands that depend on the time, steps use
-- these functions, and the TIME that was read first. Without an ID there is no instant.
local now, time, rest

local function pttl(KEYS)
  if not now then return redis.call('PTTL', KEYS[1]) end
  local expiry = redis.pcall('PEXPIRETIME', KEYS[1])
  if type(expiry) == 'number' then return expiry < 0 and expiry or math.max(expiry - now, 0) end
  -- Before Redis 7: exact if the clock's millisecond is the same before and after.
  local before, left, after
  repeat
    before, left, after = redis.call('TIME'), redis.call('PTTL', KEYS[1]), redis.call('TIME')
  until left < 0 or before[1] == after[1] and math.floor(before[2] / 1000) == math.floor(after[2] / 1000)
  return left < 0 and left or math.max(before[1] * 1000 + math.floor(before[2] / 1000) + left - now, 0)
end

local function set(KEYS, value, px, left)
  if not left then -- KEEPTTL
    redis.call('SET', KEYS[1], value, px)
  elseif not now then
    redis.call('SET', KEYS[1], value, px, left)
  elseif redis.pcall('SET', KEYS[1], value, 'PXAT', now + left).err then -- before Redis 6.2
    redis.call('SET', KEYS[1], value)
    redis.call('PEXPIREAT', KEYS[1], now + left)
  end
end
