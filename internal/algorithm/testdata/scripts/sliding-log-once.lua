local redis = redis
local function step(KEYS, ARGV)
local call, asked, count, period = redis.call, ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
local how, keep = ARGV[4], 0
if how and #how > 1 and asked > 0 then how, keep = string.sub(how, 1, 1), string.sub(how, 3) + 0 end
local key = KEYS[1]
local rest = call('PTTL', key)
local log, len, newest, since, stale = '', 0, 0x31303030, 0, rest == 0
if rest > 0 then
  log = call('GET', key)
  len = #log / 4
  if len < 1 or len % 1 ~= 0 then return redis.error_reply('FOREIGN value') end
  newest, since = struct.unpack('>I4', log, #log - 3), period - rest
elseif rest == -1 then
  return redis.error_reply('FOREIGN key without expiry')
end
local present = '1000'
if len > 0 then present = struct.pack('>I4', (newest + since) % 4294967296) end
local function age(i) return since + (newest - struct.unpack('>I4', log, 4 * i - 3)) % 4294967296 end
if since < 0 then
  local past = len - 1
  while past > 0 and age(past) < 0 do past = past - 1 end
  log = string.sub(log, 1, 4 * past) .. string.rep(present, len - past)
  newest, since, rest, stale = struct.unpack('>I4', present), 0, period, true
end
if len > count then
  log, len, stale = string.sub(log, 4 * (len - count) + 1), count, true
end
local gone, high, probe = 0, len, 0
while gone < high do
  if age(probe + 1) >= period then gone = probe + 1 else high = probe end
  probe = math.floor((gone + high) / 2)
end
local used, wait = len - gone, 0
local free, cost, last = count - used - keep, asked, len
if ARGV.due then
  local function older(limit)
    local low, top = gone, len
    while low < top do
      local middle = math.floor((low + top) / 2)
      if age(middle + 1) >= limit then low = middle + 1 else top = middle end
    end
    return low
  end
  last = older(period - ARGV.due)
  cost = math.max(cost, older(period - ARGV.due + 1) - last)
end
if how == '1' and cost > free then cost = math.max(free, 1) end
if cost > free then
  wait = period - age(gone + cost - free)
  cost = 0
elseif cost < -used then
  cost = -used
end
local charge = cost
if ARGV.dry then charge = 0 end
local reset = 0
if charge > 0 then
  if gone > 0 then log = string.sub(log, 4 * gone + 1) end
  log = log .. string.rep(present, charge)
  reset = period
else
  if charge < 0 then log = string.sub(log, 4 * gone + 1, 4 * (last + charge)) .. string.sub(log, 4 * last + 1) end
  len = #log / 4
  if len > 0 then reset = period - age(len) end
end
used = used + charge
if not ARGV.dry and (cost ~= 0 or stale) then
  if reset > 0 then
    call('SET', key, log, 'PX', reset)
  elseif rest >= 0 then
    call('DEL', key)
  end
end
ARGV.due = period
if used == 0 then reset = 0 end
return {ARGV.dry and 0 or cost, used, wait, reset}, cost, 0
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
