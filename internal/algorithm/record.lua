-- The record of a grant under an ID: the units still charged, and when to act on them,
-- counted from the record's expiry. A trailing r means that the grant was refunded,
-- which is possible only once.

-- recall returns the record, with times counted from now, or nil, or an error.
local function recall(key)
  local rest = redis.call('PTTL', key)
  if rest == -1 then return redis.error_reply('FOREIGN record without expiry') end
  if rest <= 0 then return nil end
  local units, acting, refunded = string.match(redis.call('GET', key), '^(%d+) (%-?%d+)(r?)$')
  if not units then return redis.error_reply('FOREIGN record') end
  return {units = tonumber(units), acting = acting + rest, refunded = refunded, rest = rest}
end

-- remember writes the record of units that can be acted on after a delay.
local function remember(key, units, delay, lifetime)
  redis.call('SET', key, string.format('%.0f %.0f', units, delay - lifetime), 'PX', lifetime)
end
