local redis = redis
local function step(KEYS, ARGV)
local call, asked, count, period = redis.call, ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
local how, keep = ARGV[4], 0
if how and #how > 1 and asked > 0 then how, keep = string.sub(how, 1, 1), string.sub(how, 3) + 0 end
local key = KEYS[1]
local rest = call('PTTL', key)
local value, stale = 0, false
if rest > 0 then
  local text = call('GET', key)
  value = tonumber(text)
  if not value or value < 1 or value % 1 ~= 0 then return redis.error_reply('FOREIGN value') end
  if not string.find(text, '^[1-9]%d*$') then return redis.error_reply('FOREIGN value') end -- together
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
if ARGV.due then
  if ARGV.due == left and previous > 0 and cost < 0 then
    previous, stale = previous - math.min(-asked, previous), true
  end
  cost = ARGV.due == left + period and math.max(cost, -current) or 0
end
ARGV.due = left + period
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
local function milliseconds(time)
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
local function expiryOf(server, key)
  local expiry = server.pcall('PEXPIRETIME', key)
  if type(expiry) == 'number' then return expiry end
  local before, rest
  repeat
    before, rest = milliseconds(server.call('TIME')), server.call('PTTL', key)
  until rest < 0 or milliseconds(server.call('TIME')) == before
  return rest < 0 and rest or before + rest
end
local function setUntil(server, key, value, expiry)
  if server.pcall('SET', key, value, 'PXAT', expiry).err then
    server.call('SET', key, value)
    server.call('PEXPIREAT', key, expiry)
  end
end
local function freeze()
  local server, time = redis, redis.call('TIME')
  local now = milliseconds(time)
  local function call(name, key, value, px, rest)
    if name == 'TIME' then return time end
    if name == 'SET' then return setUntil(server, key, value, now + rest) end
    if name == 'INCRBY' then return server.call('INCRBY', key, value) end
    if name ~= 'PTTL' then return server.call(name, key) end
    local expiry = expiryOf(server, key)
    return expiry < 0 and expiry or math.max(expiry - now, 0)
  end
  return {call = call, error_reply = redis.error_reply}
end
local function recall(key)
  local rest = redis.call('PTTL', key)
  if rest == -1 then return redis.error_reply('FOREIGN record without expiry') end
  if rest <= 0 then return nil end
  local units, acting, due, owed, refunded =
    string.match(redis.call('GET', key), '^(%d+) (%-?%d+) (%-?%d+) ?(%d*)(r?)$')
  if not units then return redis.error_reply('FOREIGN record') end
  return {units = tonumber(units), acting = acting + rest, due = due + rest,
    owed = tonumber(owed) or tonumber(units), refunded = refunded, rest = rest}
end
local function remember(key, record)
  local owed = record.owed ~= record.units and string.format(' %.0f', record.owed) or ''
  redis.call('SET', key, string.format('%.0f %.0f %.0f', record.units, record.acting - record.rest,
    record.due - record.rest) .. owed .. (record.refunded or ''), 'PX', record.rest)
end
local function unpaid(record, unit, scale)
  if record.due <= 0 then return 0 end
  if scale == 0 then return record.owed end
  return math.min(record.owed, math.ceil(record.due * scale / unit))
end
local function move(step, keys, own, record, change, unit, scale)
  local open = unpaid(record, unit, scale)
  if change > 0 then
    own[1] = change * unit
    local reply, charged = step(keys, own)
    if charged and charged ~= 0 then
      if scale > 0 then
        open = math.min(open, math.floor(math.max(record.due, 0) * scale / unit))
      elseif own.due ~= record.due then
        open = 0
      end
      record.units, record.owed, record.due = record.units + charged / unit, open + charged / unit, own.due
    end
    return reply, charged
  end
  local back = math.min(-change, open)
  own[1] = -back * unit
  if back > 0 then
    if scale > 0 then own[1] = -math.min(back * unit, record.due * scale) end
    own.due = record.due
  end
  local reply, charged = step(keys, own)
  record.units, record.owed = record.units + change, open - back
  if back > 0 and scale > 0 then record.due = math.max(record.due - math.floor(back * unit / scale), 0) end
  return reply, charged
end
redis = freeze()
local lifetime, unit, scale, how, own = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0, ARGV[5], {unpack(ARGV, 6)}
local cost, record = own[1] + 0, recall(KEYS[2])
if record and record.err then return record end
if record and cost < 0 and record.refunded ~= '' then record = nil end
local found, reply, charged, delay = record and {record.units, math.max(record.acting, 0), record.owed, record.due}
if not record and (cost < 0 or how == 's') or record and cost >= 0 and how ~= 's' then
  own[1] = 0
  reply = step(KEYS, own)
elseif not record then
  reply, charged, delay = step(KEYS, own)
  if charged and (charged > 0 or how == 'o') then
    remember(KEYS[2], {units = charged / unit, owed = charged / unit, acting = delay, due = own.due, rest = lifetime})
  end
else
  local change = math.max(cost, -record.units)
  if how == 's' then change = math.min(cost - record.units, ARGV[4] + 0) end
  reply, charged = move(step, KEYS, own, record, change, unit, scale)
  if how ~= 's' then record.refunded = 'r' end
  if charged and record.units == 0 and how ~= 's' then
    redis.call('DEL', KEYS[2])
  elseif charged then
    remember(KEYS[2], record)
  end
end
if type(reply) ~= 'table' then reply = {reply} end
if reply.err then return reply end
found = found or {-1, 0, 0, 0}
return {found[1], found[2], found[3], found[4], unpack(reply)}
