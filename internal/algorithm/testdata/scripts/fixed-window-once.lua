local function step(KEYS, ARGV)
local call, asked, count, period = redis.call, ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
local how, keep = ARGV[4], 0
if how and #how > 1 and asked > 0 then how, keep = string.sub(how, 1, 1), string.sub(how, 3) + 0 end
local key = KEYS[1]
local rest = call('PTTL', key)
local used, stale, overdrawn = 0, false, false
if rest > 0 then
  used = tonumber(call('GET', key))
  if not used or used < 1 or used % 1 ~= 0 then return redis.error_reply('FOREIGN value') end
elseif rest == -1 then
  return redis.error_reply('FOREIGN key without expiry')
end
local found, left = used, rest
if used > count then
  local most = count
  if used >= 4503599627370496 then
    used, most, overdrawn = used - 4503599627370496, count + (ARGV[5] or count), true
  end
  if used > most then used, stale = most, true end
end
if rest > period then rest, stale = period, true end
local free, cost = count - used - keep, asked
if cost > free and cost > 0 then
  if how == 'o' then
    cost = math.min(cost, math.max(free + (ARGV[5] or count), 0))
  elseif how == '1' then
    cost = math.max(free, 0)
  else
    cost = 0
  end
elseif cost < -used then
  cost = -used
end
if ARGV.dry then return {found, left}, cost end
local after = used + cost
if after == 0 then
  if rest >= 0 then call('DEL', key) end
elseif cost > free or overdrawn then
  if cost ~= 0 then overdrawn = cost > free end
  if used == 0 then rest = period end
  if overdrawn then after = after + 4503599627370496 end
  if cost ~= 0 or stale then call('SET', key, after, 'PX', rest) end
elseif used == 0 then
  call('SET', key, cost, 'PX', ARGV[3])
elseif stale then
  call('SET', key, after, 'PX', rest)
elseif cost == asked and cost ~= 0 then
  call('INCRBY', key, ARGV[1])
elseif cost ~= 0 then
  call('INCRBY', key, cost)
end
return {found, left}, cost, 0
end
local function recall(key)
  local rest = redis.call('PTTL', key)
  if rest == -1 then return redis.error_reply('FOREIGN record without expiry') end
  if rest <= 0 then return nil end
  local units, acting, refunded = string.match(redis.call('GET', key), '^(%d+) (%-?%d+)(r?)$')
  if not units then return redis.error_reply('FOREIGN record') end
  return {units = tonumber(units), acting = acting + rest, refunded = refunded, rest = rest}
end
local function remember(key, units, delay, lifetime)
  redis.call('SET', key, string.format('%.0f %.0f', units, delay - lifetime), 'PX', lifetime)
end
local lifetime, unit, own = tonumber(ARGV[1]), tonumber(ARGV[2]), {unpack(ARGV, 4)}
local cost, record = tonumber(own[1]), recall(KEYS[2])
if record and record.err then return record end
local back = 0
local refunds = cost < 0 and record and record.refunded == ''
if refunds then back = math.min(-cost, record.units) end
if cost < 0 then own[1] = -back * unit elseif record then own[1] = 0 end
local reply, charged, delay = step(KEYS, own)
if type(reply) ~= 'table' then reply = {reply} end
if reply.err then return reply end
if charged and refunds then
  if back == record.units then
    redis.call('DEL', KEYS[2])
  else
    redis.call('SET', KEYS[2], string.format('%.0f %.0fr', record.units - back, record.acting - record.rest), 'PX', record.rest)
  end
elseif charged and (charged > 0 or ARGV[3] == 'o' and not record) then
  remember(KEYS[2], charged / unit, delay, lifetime)
end
record = record or {units = -1, acting = 0}
return {cost < 0 and back or record.units, math.max(record.acting, 0), unpack(reply)}
