-- The record of a grant under an ID; see grant.go. The value is the units charged, when to
-- act on them, when time has paid them back, and for how many of them that holds if not for
-- all: n, or -1 - n if the others count in earlier parts of a window. Times are in
-- milliseconds of Redis's clock. A trailing r means that the grant was refunded, which is
-- possible only once.

-- recall returns, of a value that expires after the time left, the units, when to act on them, when they are paid back, from now, how
-- many of them, and r if they were refunded; or nil; or false and an error.
local function recall(value, left)
  if left == -1 then return false, redis.error_reply('FOREIGN record without expiry') end
  if left <= 0 then return nil end
  local units, acting, due, owed, refunded = string.match(value, '^(%d+) (%d+) (%d+) ?(%-?%d*)(r?)$')
  if not units then return false, redis.error_reply('FOREIGN record') end
  units = units + 0
  return units, acting, due - now, tonumber(owed) or units, refunded
end

-- update writes a record that was recalled. It expires when it would have.
local function update(KEYS, units, acting, due, owed, refunded)
  if owed ~= units then refunded = string.format(' %d', owed) .. refunded end
  local record = string.format('%d %s %d%s', units, acting, now + due, refunded)
  redis.call('SET', KEYS[1], record, 'KEEPTTL')
end

-- move charges more units of a grant, or refunds some of them. The scale is how much of a
-- bucket's debt time pays in a millisecond, or 0 for a window. It returns what the step
-- does, and the grant's units, when they are paid back, and how many of them.
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
