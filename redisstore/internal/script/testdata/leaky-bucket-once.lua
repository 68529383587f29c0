local redis, KEYS, ARGV = redis, KEYS, ARGV
local now, time, rest
local function pttl(KEYS)
  if not now then return redis.call('PTTL', KEYS[1]) end
  local expiry = redis.pcall('PEXPIRETIME', KEYS[1])
  if type(expiry) == 'number' then return expiry < 0 and expiry or math.max(expiry - now, 0) end
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
local function step(KEYS, ARGV)
local asked, capacity = ARGV[1] + 0, ARGV[2] + 0
local unit, mark, how, bound, interval, overdraft, ceiling = 1000000, '', ARGV[3], false, false, capacity, capacity
if how then
  if #how > 1 then how, ceiling = string.sub(how, 1, 1), capacity - string.sub(how, 3) end
  overdraft = ARGV[4] + 0
  if how == '1' or how == 'o' then interval = ARGV[5] + 0 end
  if ARGV[6] == 'u' then unit, mark = 1000, 'u' end
  if ARGV[7] then bound = ARGV[7] + 0 end
end
local rest = rest or pttl(KEYS)
local value, debt, part, stale = false, 0, 0, false
if rest > 0 then
  local text = redis.call('GET', KEYS[1])
  value = tonumber(text)
  if value and mark == '' then
    if value > 0 or value % 1 ~= 0 then return redis.error_reply('FOREIGN value') end
    if not string.find(text, '^%-[1-9]%d*$') and text ~= '0' then return redis.error_reply('FOREIGN value') end -- together
    debt = value + rest * unit
  else
    local digits, decimals, micros = string.match(text, '^(%-?%d+)%.?(%d*)(u?)$')
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
    value = false
  end
  if debt <= 0 then
    debt, part = 0, 0
  elseif debt > capacity then
    local most = capacity + math.max(capacity, overdraft, capacity == 0 and 4503599627370496 or 60000 * unit)
    if debt > most then debt, part, stale = most, 0, true end
  end
elseif rest == -1 then
  return redis.error_reply('FOREIGN key without expiry')
end
local most, late, charge = ceiling, false, asked
if bound then late = debt > bound end
if interval and charge > 0 then
  local free = 0
  if how == 'o' then
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
  if rest >= 0 then redis.call('DEL', KEYS[1]) end
elseif charge ~= 0 or stale then
  local moved = after - rest * unit
  if value and not stale and moved <= 0 then
    if debt > 0 and charge == asked then
      redis.call('INCRBY', KEYS[1], ARGV[1])
    else
      redis.call('INCRBY', KEYS[1], moved - value)
    end
  else
    local ttl = math.max(math.floor(2 * capacity / unit), 1000)
    if after > capacity then ttl = math.max(ttl, math.ceil(after / unit)) end
    moved = after - ttl * unit
    if part > 0 then
      moved = string.format('-%.0f.%03d', math.abs(moved), part) .. mark
    elseif mark ~= '' then
      moved = string.format('%.0f', moved) .. mark
    end
    set(KEYS, moved, 'PX', ttl)
  end
end
ARGV.due = math.ceil(after / unit)
return debt, charge, how == 'o' and 0 or math.ceil(debt / unit)
end
local last = #ARGV
local unit, how, most, scale = ARGV[last - 1] + 0, ARGV[last], ARGV[last - 2]
local moves = how == 's' or how == 'r'
ARGV[last], ARGV[last - 1], ARGV[last - 2] = nil, nil, nil
if moves then scale, ARGV[last - 3] = ARGV[last - 3] + 0, nil end
rest = redis.call('PTTL', KEYS[1])
local expiry = rest > 0 and redis.pcall('PEXPIRETIME', KEYS[1])
if type(expiry) == 'number' then
now = expiry - rest
else
rest = nil
time = redis.call('TIME')
now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local value, left = redis.call('GET', KEYS[2]), 0
if value then left = pttl({KEYS[2]}) end
if not moves and left ~= -1 and left <= 0 then -- a key lives until after the millisecond of its expiry
  local reply, charged, delay = step(KEYS, ARGV)
  if charged and (charged > 0 or how == 'o') then
    local record = string.format('%d %d %d', charged / unit, now + delay, now + ARGV.due)
    redis.call('SET', KEYS[2], record, 'PX', most)
  end
  return reply
end
local function recall(value, left)
  if left == -1 then return false, redis.error_reply('FOREIGN record without expiry') end
  if left <= 0 then return nil end
  local units, acting, due, owed, refunded = string.match(value, '^(%d+) (%d+) (%d+) ?(%-?%d*)(r?)$')
  if not units then return false, redis.error_reply('FOREIGN record') end
  units = units + 0
  return units, acting, due - now, tonumber(owed) or units, refunded
end
local function update(KEYS, units, acting, due, owed, refunded)
  if owed ~= units then refunded = string.format(' %d', owed) .. refunded end
  local record = string.format('%d %s %d%s', units, acting, now + due, refunded)
  redis.call('SET', KEYS[1], record, 'KEEPTTL')
end
local function move(step, keys, own, units, due, owed, change, unit, scale)
  local open, apart = owed, owed < 0 and due > 0 -- open are units that time has not paid back
  if owed < 0 then open = -1 - owed end
  if due <= 0 then
    open = 0
  elseif scale > 0 then
    open = math.min(open, math.ceil(due * scale / unit))
  end
  if change > 0 then
    own[1] = change * unit
    local reply, charged = step(keys, own)
    if not charged or charged == 0 then return reply, charged, units, due, owed end
    if scale > 0 then
      open = math.min(open, math.floor(math.max(due, 0) * scale / unit))
    elseif own.due ~= due then
      open, apart = 0, apart or open > 0
    end
    open = open + charged / unit
    return reply, charged, units + charged / unit, own.due, apart and -1 - open or open
  end
  local back = math.min(-change, open)
  own[1] = -back * unit
  if back > 0 then
    if scale > 0 then own[1] = -math.min(back * unit, due * scale) end
    own.due = due
  end
  local reply, charged = step(keys, own)
  if back > 0 and scale > 0 then due = math.max(due - math.floor(back * unit / scale), 0) end
  if apart then return reply, charged, units - back, due, -1 - open + back end
  return reply, charged, units + change, due, open - back
end
local units, acting, due, owed, refunded
if value then units, acting, due, owed, refunded = recall(value, left) end
if units == false then return acting end
local cost = ARGV[1] + 0
if not units or how == 'r' and refunded ~= '' then
  ARGV[1] = 0
  return (step(KEYS, ARGV))
end
local found, reply, charged
if not moves then
  found, ARGV[1] = {units, math.max(acting - now, 0)}, 0
  reply = step(KEYS, ARGV)
else
  found = {units, owed, due}
  local change = math.max(cost, -units)
  if how == 's' then change = math.min(cost - units, most + 0) end
  reply, charged, units, due, owed = move(step, KEYS, ARGV, units, due, owed, change, unit, scale)
  if how == 'r' then refunded = 'r' end
  if charged and units == 0 and how == 'r' then
    redis.call('DEL', KEYS[2])
  elseif charged then
    update({KEYS[2]}, units, acting, due, owed, refunded)
  end
end
if type(reply) ~= 'table' then
  found[#found + 1] = reply
  return found
end
if reply.err then return reply end
for _, number in ipairs(reply) do found[#found + 1] = number end
return found
