local function step(KEYS, ARGV)
local call, asked, count, period = redis.call, ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
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
local free, cost = count - current - share, asked
if cost > free and cost > 0 then
  if ARGV[4] == 'o' then
    cost = math.min(cost, math.max(free + (ARGV[5] or count), 0))
  elseif ARGV[4] == '1' then
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
local memory, unit, own = tonumber(ARGV[1]), tonumber(ARGV[2]), {unpack(ARGV, 3)}
local cost, rest = tonumber(own[1]), redis.call('PTTL', KEYS[2])
local units, acting, reversed, known = 0, 0, '', false
if rest > 0 then
  units, acting, reversed = string.match(redis.call('GET', KEYS[2]), '^(%d+) (%-?%d+)(r?)$')
  if not units then return redis.error_reply('FOREIGN record') end
  units, acting, known = tonumber(units), acting + rest, true
elseif rest == -1 then
  return redis.error_reply('FOREIGN record without expiry')
end
local back = 0
if cost < 0 and known and reversed == '' then back = math.min(-cost, units) end
if cost < 0 then own[1] = -back * unit elseif known then own[1] = 0 end
local reply, charged, delay = step(KEYS, own)
if type(reply) ~= 'table' then reply = {reply} end
if reply.err then return reply end
if charged and back > 0 then
  if back == units then
    redis.call('DEL', KEYS[2])
  else
    redis.call('SET', KEYS[2], string.format('%.0f %.0fr', units - back, acting - rest), 'PX', rest)
  end
elseif charged and charged > 0 then
  redis.call('SET', KEYS[2], string.format('%.0f %.0f', charged / unit, delay - memory), 'PX', memory)
end
return {cost < 0 and back or units, math.max(acting, 0), unpack(reply)}
