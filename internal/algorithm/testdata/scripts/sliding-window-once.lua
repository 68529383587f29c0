local function step(KEYS, ARGV)
local call, asked, count, period = redis.call, ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
local how, keep = ARGV[4], 0
if how and #how > 1 and asked > 0 then how, keep = string.sub(how, 1, 1), string.sub(how, 3) + 0 end
local key = KEYS[1]
local rest = call('PTTL', key)
local value, stale = 0, false
if rest > 0 then
  value = tonumber(call('GET', key))
  if not value or value < 1 or value % 1 ~= 0 then return redis.error_reply('FOREIGN value') end
elseif rest == -1 then
  return redis.error_reply('FOREIGN key without expiry')
end
local current = value % 67108864
local previous = (value - current) / 67108864
local left, kept, most, overdrawn = rest - period, true, count, false
if previous >= 67108864 then
  previous, overdrawn = previous - 67108864, left > 0
  if overdrawn then most = count + (ARGV[5] or count) else current = math.min(current, count) end
end
if left <= 0 then previous, current, left, kept = current, 0, rest, false end
if previous == 0 and current == 0 then left, kept = period, false end
if left > period then left, stale = period, true end
if current > most then current, stale = most, true end
local share = 0
if previous > 0 then
  share = math.ceil(previous * left / period)
  if share > most - current or previous * left >= 9007199254740992 then
    local function divide(a, b, c, round)
      local high, low = math.floor(a / 8192), a % 8192
      local whole = math.floor(high * b / c)
      return whole * 8192 + round(((high * b - whole * c) * 8192 + low * b) / c)
    end
    share = divide(previous, left, period, math.ceil)
    if share > most - current then
      previous, stale = divide(most - current, period, left, math.floor), true
      share = divide(previous, left, period, math.ceil)
    end
  end
end
local free, cost = count - current - share - keep, asked
if cost > free and cost > 0 then
  if how == 'o' then
    cost = math.min(cost, math.max(free + (ARGV[5] or count), 0))
  elseif how == '1' then
    cost = math.max(free, 0)
  else
    cost = 0
  end
elseif cost < -current - previous then
  cost = -current - previous
end
if ARGV.dry then return {value, rest}, cost end
current = current + cost
if current < 0 then previous, current = previous + current, 0 end
if previous == 0 and current == 0 then
  if rest >= 0 then call('DEL', key) end
elseif cost ~= 0 or stale then
  local after = previous * 67108864 + current
  if cost ~= 0 then overdrawn = cost > free and current > 0 end
  if overdrawn then after = after + 4503599627370496 end
  if kept and not stale and cost > 0 and after - value == asked then
    call('INCRBY', key, ARGV[1])
  elseif kept and not stale then
    call('INCRBY', key, after - value)
  else
    call('SET', key, after, 'PX', left + period)
  end
end
return {value, rest}, cost, 0
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
