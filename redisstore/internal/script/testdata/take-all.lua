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
local function arguments(at)
  local n = math.abs(ARGV[at])
  if n == 0 then return nil, at + 1 end
  if n < 4 then return {ARGV[at + 1], ARGV[at + 2], n == 3 and ARGV[at + 3] or nil, dry = false, due = false}, at + 1 + n end
  local list = {ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], n > 4 and ARGV[at + 5] or nil,
    n > 5 and ARGV[at + 6] or nil, n > 6 and ARGV[at + 7] or nil, dry = false, due = false}
  for i = 8, n do list[i] = ARGV[at + i] end
  return list, at + 1 + n
end
local steps = {}
steps.t = function(KEYS, ARGV)
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
if bound then most = bound end
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
if after <= capacity or how == 'o' then return debt, charge, 0 end
return debt, charge, math.ceil((after - capacity) / unit)
end
steps.l = function(KEYS, ARGV)
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
steps.f = function(KEYS, ARGV)
local asked, count, period = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
local how, keep = ARGV[4], 0
if how and #how > 1 and asked > 0 then how, keep = string.sub(how, 1, 1), string.sub(how, 3) + 0 end
local rest = rest or pttl(KEYS)
local used, stale = 0, false
if rest > 0 then
  local text = redis.call('GET', KEYS[1])
  used = tonumber(text)
  if not used or used < 1 or used % 1 ~= 0 then return redis.error_reply('FOREIGN value') end
  if not string.find(text, '^[1-9]%d*$') then return redis.error_reply('FOREIGN value') end -- together
elseif rest == -1 then
  return redis.error_reply('FOREIGN key without expiry')
end
local found, left = used, rest
if rest > period then rest, stale = period, true end
local free, cost = count - used - keep, asked
if ARGV.due and ARGV.due ~= rest then cost = 0 end
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
ARGV.due = used == 0 and period or rest
local after = used + cost
if after == 0 then
  if rest >= 0 then redis.call('DEL', KEYS[1]) end
elseif used == 0 then
  set(KEYS, cost, 'PX', ARGV[3])
elseif stale then
  set(KEYS, after, 'PX', rest)
elseif cost == asked and cost ~= 0 then
  redis.call('INCRBY', KEYS[1], ARGV[1])
elseif cost ~= 0 then
  redis.call('INCRBY', KEYS[1], cost)
end
return {found, left}, cost, 0
end
steps.a = function(KEYS, ARGV)
local sub, asked, count = string.sub, tonumber(ARGV[1]) or -math.huge, ARGV[2] + 0
local how, keep = ARGV[3], 0
if #how > 1 and asked > 0 then how, keep = sub(how, 1, 1), sub(how, 3) + 0 end
local time = time or redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local length, close = tonumber(ARGV[6]), false
local clocked = length
if clocked then
  close = now - (now - ARGV[7]) % length + length
else
  for i = 7, #ARGV - 1 do
    if ARGV[i] + 0 <= now and now < ARGV[i + 1] + 0 then
      close = tonumber(ARGV[i + 1])
      length = close - ARGV[i]
    end
  end
  if not close then return {-1, 0, now} end
end
local match = string.match
local current = close % 1000 == 0 and '^' .. string.format('%.0f', close / 1000) .. '(%d%d%d%d%d%d%d%d%d)$'
local value = redis.call('GET', KEYS[1])
local used, finish, over, stale, whole = 0, close, true, false, false
local units = value and current and match(value, current)
if units then
  used, over, whole = units + 0, false, true
elseif value then
  local ending, counted = match(value, '^(%d%d%d%d%d%d%d%d%d%d)(%d%d%d%d%d%d%d%d%d)$')
  if ending then
    ending = ending * 1000
  else
    counted, ending = match(value, '^(%d+) (%d+)$')
  end
  if not ending then return redis.error_reply('FOREIGN value') end
  if ending + 0 > now then used, finish, over = counted + 0, ending + 0, false end
end
local found, ending = used, finish
if finish > now + length then finish, stale = now + length, true end
local free, cost = count - used - keep, asked
if ARGV.due and ARGV.due ~= finish - now then cost = 0 end
if cost > free and cost > 0 then
  if how == 'o' then
    cost = math.min(cost, math.max(free + ARGV[4], 0))
  elseif how == '1' then
    cost = math.max(free, 0)
  else
    cost = 0
  end
elseif cost < -used then
  cost = -used
end
if ARGV.dry then return {found, ending, now}, cost end
ARGV.due = finish - now
local after = used + cost
if after == 0 then
  if value and (not over or ARGV[1] == 'all') then redis.call('DEL', KEYS[1]) end
elseif whole and not stale and after < 1000000000 then
  if cost == asked and cost ~= 0 then
    redis.call('INCRBY', KEYS[1], ARGV[1]) -- it is text already
  elseif cost ~= 0 then
    redis.call('INCRBY', KEYS[1], cost)
  end
elseif cost ~= 0 or stale then
  local text, left = string.format('%.0f %.0f', after, finish), finish - now
  if finish % 1000 == 0 and finish >= 1000000000000 and finish < 9223372036000 and after < 1000000000 then
    text = string.format('%.0f%09.0f', finish / 1000, after)
  end
  left = left + math.floor(length * ARGV[5] / 1000)
  set(KEYS, text, 'PX', left)
end
return {found, ending, now}, cost, 0
end
steps.s = function(KEYS, ARGV)
local asked, count, period = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
local how, keep = ARGV[4], 0
if how and #how > 1 and asked > 0 then how, keep = string.sub(how, 1, 1), string.sub(how, 3) + 0 end
local rest = rest or pttl(KEYS)
local value, stale = 0, false
if rest > 0 then
  local text = redis.call('GET', KEYS[1])
  value = tonumber(text)
  if not value or value < 1 or value % 1 ~= 0 then return redis.error_reply('FOREIGN value') end
  if not string.find(text, '^[1-9]%d*$') then return redis.error_reply('FOREIGN value') end -- together
elseif rest == -1 then
  return redis.error_reply('FOREIGN key without expiry')
end
local current = value % 67108864
local previous = (value - current) / 67108864
local left, kept, overdrawn = rest - period, true, false
if previous >= 67108864 then
  previous, overdrawn = previous - 67108864, left > 0
  if not overdrawn then current = math.min(current, count) end
end
if left <= 0 then previous, current, left, kept = current, 0, rest, false end
if previous == 0 and current == 0 then left, kept = period, false end
if left > period then left, stale = period, true end
local share = 0
if previous > 0 then
  share = math.ceil(previous * left / period)
  if previous * left >= 9007199254740992 then
    local high, low = math.floor(previous / 8192), previous % 8192
    local whole = math.floor(high * left / period)
    share = whole * 8192 + math.ceil(((high * left - whole * period) * 8192 + low * left) / period)
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
  if rest >= 0 then redis.call('DEL', KEYS[1]) end
elseif cost ~= 0 or stale then
  local after = previous * 67108864 + current
  if cost ~= 0 then overdrawn = (overdrawn or cost > 0) and cost > free and current > 0 end
  if overdrawn then after = after + 4503599627370496 end
  if kept and not stale and cost > 0 and after - value == asked then
    redis.call('INCRBY', KEYS[1], ARGV[1])
  elseif kept and not stale then
    redis.call('INCRBY', KEYS[1], after - value)
  else
    set(KEYS, after, 'PX', left + period)
  end
end
return {value, rest}, cost, 0
end
steps.r = function(KEYS, ARGV)
local asked, count, length = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
local size, how, keep = ARGV[4] + 1, ARGV[5], 0
if how and #how > 1 and asked > 0 then how, keep = string.sub(how, 1, 1), string.sub(how, 3) + 0 end
local time = time or redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local bucket = math.floor(now / length)
local value = redis.call('GET', KEYS[1])
local newest, counts, stale = bucket, {}, false
if value then
  local head, tail = string.match(value, '^(%d+)( [%d ]*)$')
  if not head then return redis.error_reply('FOREIGN value') end
  newest = tonumber(head)
  for n in string.gmatch(tail, '%d+') do counts[#counts + 1] = tonumber(n) end
  if #counts > size then return redis.error_reply('FOREIGN value') end
end
if newest > bucket then
  local kept, ahead = {0}, newest - bucket
  for i, n in ipairs(counts) do
    if i <= ahead + 1 then kept[1] = kept[1] + n else kept[#kept + 1] = n end
  end
  counts, newest, stale = kept, bucket, true
end
local last = 1
while last <= #counts and counts[last] == 0 do last = last + 1 end
if (newest - last + 1 + size) * length <= now then counts, stale = {}, value end
local live, used = math.min(size - (bucket - newest), #counts), 0
for i = 1, live do used = used + counts[i] end
local free, cost, wait, own = count - used - keep, asked, 0, 1
if ARGV.due then
  own = bucket - (now + ARGV.due) / length + size + 1
  cost = math.max(cost, -(counts[own - bucket + newest] or 0))
end
if how == '1' and cost > free and cost > 0 then cost = math.max(free, 1) end
if cost > free and cost > 0 then
  local missing, i = cost - free, live
  while i > 0 and missing > counts[i] do missing, i = missing - counts[i], i - 1 end
  wait = (newest - i + 1 + size) * length - now
  cost = 0
elseif cost < -used then
  cost = -used
end
local charge = cost
if ARGV.dry then charge = 0 end
if charge ~= 0 then
  local moved = {}
  if live > 0 then
    for i = 1, bucket - newest do moved[i] = 0 end
    for i = 1, live do moved[#moved + 1] = counts[i] end
  else
    moved[1] = 0
  end
  counts, newest, live, used = moved, bucket, #moved, used + charge
  local i = own
  counts[1] = counts[1] + math.max(charge, 0)
  while charge < 0 do
    local gone = math.min(counts[i], -charge)
    counts[i], charge, i = counts[i] - gone, charge + gone, i + 1
  end
end
last = 1
while last <= #counts and counts[last] == 0 do last = last + 1 end
local reset = 0
if last <= #counts then reset = (newest - last + 1 + size) * length - now end
if not ARGV.dry and (cost ~= 0 or stale) then
  if reset > 0 then
    local text = newest .. ' ' .. table.concat(counts, ' ')
    set(KEYS, text, 'PX', reset)
  elseif value then
    redis.call('DEL', KEYS[1])
  end
end
ARGV.due = reset
if used == 0 then reset = 0 end
return {ARGV.dry and 0 or cost, used, wait, reset}, cost, 0
end
steps.g = function(KEYS, ARGV)
local asked, count, period = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
local how, keep = ARGV[4], 0
if how and #how > 1 and asked > 0 then how, keep = string.sub(how, 1, 1), string.sub(how, 3) + 0 end
local rest = rest or pttl(KEYS)
local log, len, newest, since, stale = '', 0, 0x31303030, 0, rest == 0
if rest > 0 then
  log = redis.call('GET', KEYS[1])
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
if how == '1' and cost > free and cost > 0 then cost = math.max(free, 1) end
if cost > free and cost > 0 then
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
    set(KEYS, log, 'PX', reset)
  elseif rest >= 0 then
    redis.call('DEL', KEYS[1])
  end
end
ARGV.due = period
if used == 0 then reset = 0 end
return {ARGV.dry and 0 or cost, used, wait, reset}, cost, 0
end
steps.c = function(KEYS, ARGV)
local asked, period, id, how = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] or '', ARGV[5]
local count, keep, sub, find, read = asked > 0 and ARGV[4] + 0, 0, string.sub, string.find, struct.unpack
if how and #how > 1 then how, keep = sub(how, 1, 1), sub(how, 3) + 0 end
local rest = rest or pttl(KEYS)
local permits, close, expiry, used, oldest, newest, stale, single = '', 0, 0, 0, 0, 0, rest == 0, false
if rest > 0 then
  permits = redis.call('GET', KEYS[1])
  if permits == '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' then
    permits, single = '', true
  elseif permits ~= '' then
    used = (#permits - 4) / 12
    if used < 1 or used % 1 ~= 0 then return redis.error_reply('FOREIGN value') end
    close, expiry = read('>I4xxxxxxxxI4', permits)
    oldest = 2 * rest - (close - expiry) % 4294967296
    newest, single = oldest, used == 1
    if not single then newest = 2 * rest - (close - read('>I4', permits, 12 * used + 1)) % 4294967296 end
  end
  if permits == '' and rest > 2 * period then -- the clock stepped back, perhaps further than it can count
    rest, stale = 0, true
  end
elseif rest == -1 then
  return redis.error_reply('FOREIGN key without expiry')
else
  rest = 0
end
local drops = used > 0 and oldest <= 1
if newest > 2 * period + 1 or drops then
  local function left(i) return 2 * rest - (close - read('>I4', permits, 12 * i + 1)) % 4294967296 end
  local kept, moved, latest, gone, high, probe = used, {}, close - 2 * (rest - period), 0, used, 0
  while kept > 0 and left(kept) > 2 * period + 1 do kept = kept - 1 end
  for i = kept + 1, used do
    local mark = read('>I4', permits, 12 * i + 1) % 2
    moved[i - kept] = sub(permits, 12 * i - 7, 12 * i) .. struct.pack('>I4', latest % 4294967296 + mark)
  end
  if kept < used then -- the rest may exceed what the clock can count
    permits, stale = sub(permits, 1, 12 * kept + 4) .. table.concat(moved), true
    close, rest = (close - 2 * (rest - period - 1)) % 4294967296, period + 1
  end
  while gone < high do
    if left(probe + 1) <= 1 then gone = probe + 1 else high = probe end
    probe = math.floor((gone + high) / 2)
  end
  permits, used = sub(permits, 1, 4) .. sub(permits, 12 * gone + 5), used - gone
  if used > 0 then expiry = read('>I4', permits, 13) end
end
local first, held = false, 0
if id ~= '' and used > 0 then
  first = find(permits, id, 5, true)
  while first and first % 12 ~= 5 do first = find(permits, id, first + 1, true) end
  if first then
    if first > 5 then expiry = read('>I4', permits, first + 8) end
    repeat held = held + 1 until first + 12 * held > #permits or sub(permits, first + 12 * held, first + 12 * held + 7) ~= id
  end
end
local granted, wait, waits = asked, 0, false
if asked > 0 and first and ARGV[6] ~= '1' then
  granted = held
elseif asked > 0 then
  local free = count - used - keep
  if how == '1' and granted > free then granted = math.max(free, 1) end
  if granted + keep > count then
    granted, wait = 0, -1
  elseif granted > free then
    granted, waits = 0, 12 * (granted - free)
  end
  if first and wait >= 0 then granted, waits = 0, math.max(waits or 0, first + 7) end
  if waits then wait = math.floor(rest - (close - read('>I4', permits, waits + 1)) % 4294967296 / 2) end
elseif asked < 0 and id == '' then
  granted, stale = -used, stale or rest > 0 -- also if all have expired: a clock that steps back must not find them again
elseif asked < 0 then
  granted = first and expiry % 2 == 0 and math.max(asked, -held) or 0
end
local reset, own = 0, ''
if granted ~= 0 and not ARGV.dry then
  local mark = 0
  if granted < 0 and used + granted == 0 then
    permits = ''
  elseif first then
    local after = sub(permits, first + 12 * held)
    mark = expiry % 2
    if held + granted > 0 and granted < 0 then
      after = string.rep(id .. struct.pack('>I4', expiry - mark + 1), held + granted) .. after
    end
    permits = sub(permits, 1, first - 1) .. after
  end
  if granted > 0 then
    own = id .. struct.pack('>I4', (close - 2 * (rest - period)) % 4294967296 + mark)
    if granted > 1 then own = string.rep(own, granted) end
    reset = period
  end
  if granted < 0 or not first then used = used + granted end
end
if reset == 0 and used > 0 then
  local ahead = (close - read('>I4', permits, 12 * used + 1)) % 4294967296
  reset = rest - (ahead + ahead % 2) / 2
end
if not ARGV.dry and (granted ~= 0 or stale) then
  if used == 0 and (stale or id == '') then
    redis.call('DEL', KEYS[1])
  elseif used == 0 and single then
    redis.call('SETRANGE', KEYS[1], '0', '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0')
  elseif used == 0 then
    set(KEYS, '', 'KEEPTTL')
  elseif stale or granted > 0 and rest <= period then
    local ttl = math.ceil(1.5 * period)
    permits = struct.pack('>I4', (close - 2 * (rest - ttl)) % 4294967296) .. sub(permits, 5) .. own
    local px = string.format('%d', ttl)
    set(KEYS, permits, 'PX', px)
  elseif single and #permits <= 4 and not drops then
    redis.call('SETRANGE', KEYS[1], '0', (permits == '' and '\0\0\0\0' or permits) .. own)
  elseif first or drops then
    set(KEYS, permits .. own, 'KEEPTTL')
  else
    redis.call('APPEND', KEYS[1], permits == '' and '\0\0\0\0' .. own or own)
  end
end
return {ARGV.dry and 0 or granted, used, wait, reset}, granted, 0, held
end
local items, at, lifetime, n, keys, KEYS = {}, 3, tonumber(ARGV[2]), #KEYS, KEYS, {}
if lifetime > 0 then
  n, time = n / 2, redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
for i = 1, n do
  local letter = string.lower(ARGV[at])
  local item = {key = {keys[i]}, step = steps[letter], overdraws = letter ~= ARGV[at], unit = 0}
  at = at + 1
  if lifetime > 0 then
    item.unit, item.scale, item.most, at = ARGV[at] + 0, ARGV[at + 1] + 0, ARGV[at + 2] + 0, at + 3
  end
  item.try, at = arguments(at)
  item.take, at = arguments(at)
  if not item.take then item.take = item.try end
  items[i] = item
end
local settles, replies, all = ARGV[1] == 's', {}, {0}
local function append(units, acting, owed, due)
  local m = #all
  all[m + 1], all[m + 2], all[m + 3], all[m + 4] = units, acting, owed, due
end
local fits, takes, known = (settles or ARGV[1] == '1') and 1 or 0, 0, 0
for i, item in ipairs(items) do
  if item.unit ~= 0 then takes = takes + 1 end
  KEYS[1] = keys[n + i]
  local value = item.unit > 0 and redis.call('GET', KEYS[1])
  if value then item.units, item.acting, item.due, item.owed, item.refunded = recall(value, pttl(KEYS)) end
  if item.units == false then return item.acting end
  if lifetime > 0 and item.units then
    known = known + 1
    append(item.units, math.max(item.acting - now, 0), item.owed, item.due)
  elseif lifetime > 0 then
    append(-1, 0, 0, 0)
  end
end
for i, item in ipairs(items) do
  item.try.dry = true
  local reply, granted, _, held = item.step(item.key, item.try)
  if type(reply) == 'table' and reply.err then return reply end
  if not granted or granted == 0 and item.try[1] + 0 > 0 and not item.overdraws then fits = 0 end
  if item.unit < 0 and held and held > 0 then known, all[4 * i - 2] = known + 1, held end
  item.try.dry, item.try.due, replies[i] = false, false, reply
end
if settles and known < takes or known > 0 and not settles then fits = 0 end
local renews = known > 0 and known == takes and ARGV[1] ~= '0'
all[1] = fits
for i, item in ipairs(items) do
  KEYS[1] = keys[n + i]
  local reply, charged, delay
  if fits == 0 and not (renews and item.unit < 0) then
    item.take[1] = 0
    item.step(item.key, item.take)
    reply = replies[i]
  elseif settles then
    local change, units, due, owed = math.min(item.take[1] - item.units, item.most)
    reply, charged, units, due, owed = move(item.step, item.key, item.take, item.units, item.due, item.owed, change, item.unit, item.scale)
    update(KEYS, units, item.acting, due, owed, item.refunded)
  else
    reply, charged, delay = item.step(item.key, item.take)
    if item.unit > 0 then
      local record = string.format('%d %d %d', charged / item.unit, now + delay, now + item.take.due)
      redis.call('SET', KEYS[1], record, 'PX', lifetime)
    end
  end
  if type(reply) ~= 'table' then reply = {reply} end
  for _, number in ipairs(reply) do all[#all + 1] = number end
end
return all
