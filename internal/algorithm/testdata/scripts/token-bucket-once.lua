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
local value, debt, stale = false, 0, false
if rest > 0 then
  local text = call('GET', key)
  value = tonumber(text)
  if value and mark == '' then
    if value > 0 or value % 1 ~= 0 then return redis.error_reply('FOREIGN value') end
    debt = value + rest * unit
    if debt > capacity then debt, stale = capacity, true end
  else
    local digits, micros, reserved = string.match(text, '^(%-?%d+)(u?)(r?)$')
    if not digits or digits + 0 > 0 then return redis.error_reply('FOREIGN value') end
    debt = digits + rest * (micros == 'u' and 1000 or 1000000)
    if micros ~= mark then -- a peek does not round the stored value
      debt = mark == 'u' and math.ceil(debt / 1000) or debt * 1000
    end
    local most = capacity
    if reserved == 'r' then most = capacity + math.max(capacity, overdraft, 60000 * unit) end
    if debt > most then debt, stale = most, true end
    value = false
  end
  if debt < 0 then debt = 0 end
elseif rest == -1 then
  return redis.error_reply('FOREIGN key without expiry')
end
local most, late, charge = ceiling, false, asked
if bound then most = bound end
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
local after = debt + charge
if charge > 0 and (after > most or late) then charge, after = 0, debt end
if ARGV.dry then return debt, charge end
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
    local ttl, marks = math.max(math.ceil(2 * capacity / unit), 1000), mark
    if after > capacity then
      ttl, marks = math.max(ttl, math.ceil(after / unit)), mark .. 'r'
    end
    moved = after - ttl * unit
    if marks ~= '' then moved = string.format('%.0f', moved) .. marks end
    call('SET', key, moved, 'PX', ttl)
  end
end
if after <= capacity or ARGV[7] == '1' then return debt, charge, 0 end
return debt, charge, math.ceil((after - capacity) / unit)
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
