-- The record of a grant under an ID; see grant.go. The value is the units charged, when
-- to act on them, when time has paid them back, and of how many of them that holds if not
-- of all. Times are counted from the record's expiry. A trailing r means that the grant
-- was refunded, which is possible only once.

local function milliseconds(time)
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- expiryOf returns when a key expires, or a negative number as PTTL does. Before Redis 7
-- there is only the time left, which is exact if the clock's millisecond is the same
-- before and after.
local function expiryOf(server, key)
  local expiry = server.pcall('PEXPIRETIME', key)
  if type(expiry) == 'number' then return expiry end
  local before, rest
  repeat
    before, rest = milliseconds(server.call('TIME')), server.call('PTTL', key)
  until rest < 0 or milliseconds(server.call('TIME')) == before
  return rest < 0 and rest or before + rest
end

-- setUntil sets a key that expires at a time. Before Redis 6.2 that takes two commands.
local function setUntil(server, key, value, expiry)
  if server.pcall('SET', key, value, 'PXAT', expiry).err then
    server.call('SET', key, value)
    server.call('PEXPIREAT', key, expiry)
  end
end

-- freeze returns commands that see one instant. Redis reads its clock for each PTTL and
-- each expiry, so that the expiries of a record and of its key, which are compared, could
-- be a millisecond apart.
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

-- recall returns the record, with times counted from now, or nil, or an error.
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

-- remember writes a record.
local function remember(key, record)
  local owed = record.owed ~= record.units and string.format(' %.0f', record.owed) or ''
  redis.call('SET', key, string.format('%.0f %.0f %.0f', record.units, record.acting - record.rest,
    record.due - record.rest) .. owed .. (record.refunded or ''), 'PX', record.rest)
end

-- unpaid returns how many units of a grant time has not paid back. The scale is how much
-- of a bucket's debt time pays in a millisecond, or 0 for a window.
local function unpaid(record, unit, scale)
  if record.due <= 0 then return 0 end
  if scale == 0 then return record.owed end
  return math.min(record.owed, math.ceil(record.due * scale / unit))
end

-- move charges more units of a grant, or refunds some of them, and updates the record.
-- It returns what the step does.
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
