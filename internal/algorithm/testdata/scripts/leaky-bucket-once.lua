local redis = redis
local function step(KEYS, ARGV)
local call, asked, capacity = redis.call, ARGV[1] + 0, ARGV[2] + 0
local unit, mark, bound, interval, overdraft, ceiling = 1000000, '', false, false, capacity, capacity
if ARGV[3] then
  if ARGV[3] ~= '' then bound = ARGV[3] + 0 end
  if ARGV[4] ~= '' then interval = ARGV[4] + 0 end
  if ARGV[5] == 'u' then unit, mark = 1000, 'u' end
  overdraft = tonumber(ARGV[6]) or capacity
  if ARGV[8] then ceiling = capacity - ARGV[8] end
end
local key = KEYS[1]
local rest = call('PTTL', key)
local value, debt, part, stale = false, 0, 0, false
if rest > 0 then
  local text = call('GET', key)
  value = tonumber(text)
  if value and mark == '' then
    if value > 0 or value % 1 ~= 0 then return redis.error_reply('FOREIGN value') end
    if not string.find(text, '^%-[1-9]%d*$') and text ~= '0' then return redis.error_reply('FOREIGN value') end -- together
    debt = value + rest * unit
    if debt > capacity then debt, stale = capacity, true end
  else
    local digits, decimals, micros, reserved = string.match(text, '^(%-?%d+)%.?(%d*)(u?)(r?)$')
    if not digits or digits + 0 > 0 then return redis.error_reply('FOREIGN value') end
    if decimals ~= '' and (#decimals ~= 3 or micros == '') then return redis.error_reply('FOREIGN value') end
    if micros == mark then
      debt, part = digits + rest * unit, tonumber(decimals) or 0
    elseif mark == 'u' then -- after a step back, the debt in nanoseconds may exceed a double
      part = math.fmod(-digits, 1000)
      debt = (digits + part) / 1000 + rest * unit
    else
      debt = (digits + rest * 1000) * 1000 - (tonumber(decimals) or 0)
    end
    local most = capacity
    if reserved == 'r' then most = capacity + math.max(capacity, overdraft, 60000 * unit) end
    if debt > most then debt, part, stale = most, 0, true end
    value = false
  end
  if debt <= 0 then debt, part = 0, 0 end
elseif rest == -1 then
  return redis.error_reply('FOREIGN key without expiry')
end
local most, late, charge = ceiling, false, asked
if bound then late = debt > bound end
if interval and charge > 0 then
  local free = 0
  if ARGV[7] == '1' then
    free = math.max(math.floor((capacity + overdraft - debt) / interval), 0) * interval
    charge, late = math.min(charge, free), false
    most = debt + charge
  elseif debt < most then
    free = math.min(math.floor((most - debt) / interval) * interval, capacity)
  end
  if charge > free then charge = math.max(free, interval) end
end
if charge > 0 and (debt + charge > most or late) then charge = 0 end
if ARGV.dry then return debt, charge end
local after = debt + charge
if after <= 0 then
  if rest >= 0 then call('DEL', key) end
elseif charge ~= 0 or stale then
  local moved = after - rest * unit
  if value and not stale and moved <= 0 and after <= capacity then
    if debt > 0 and charge == asked then
      call('INCRBY', key, ARGV[1])
    else
      call('INCRBY', key, moved - value)
    end
  else
    local ttl, marks = math.max(math.floor(2 * capacity / unit), 1000), mark
    if after > capacity then
      ttl, marks = math.max(ttl, math.ceil(after / unit)), mark .. 'r'
    end
    moved = after - ttl * unit
    if part > 0 then
      moved = string.format('-%.0f.%03d', math.abs(moved), part) .. marks
    elseif marks ~= '' then
      moved = string.format('%.0f', moved) .. marks
    end
    call('SET', key, moved, 'PX', ttl)
  end
end
ARGV.due = math.ceil(after / unit)
return debt, charge, interval and ARGV[7] == '1' and 0 or math.ceil(debt / unit)
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
