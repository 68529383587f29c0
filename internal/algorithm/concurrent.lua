-- The concurrency limit; see concurrent.go. The value is the permits that are held, in
-- the order of their expiries, in sixteen bytes each: twelve of the hash of the ID, and
-- the expiry in milliseconds on a clock private to the key, which wraps around. The
-- lowest bit of the expiry marks permits of an ID of which others were released. The key
-- expires with the last permit, which is enough to know when each of them does.
--
-- ARGV: cost, count, period; and, unless the cost is 0 or refunds everything, 1 for
--       AtMost or 0 or an empty text, with a colon and the permits that a take keeps
--       free, the hash of the ID, and 1 to deny an ID that holds permits
-- Returns the permits granted, those held after that, the wait for permits not granted
-- (or -1 if they never can be), and the time until none are held; the permits granted
-- again; 0, because there is no delay; and those that the ID held before. If the whole
-- cost was granted it returns only the permits held, which determine the rest.
local call, asked, count, period = redis.call, ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
local id, wrap, how, keep = ARGV[5] or '', 2147483648, ARGV[4], 0
if how and #how > 1 and asked > 0 then how, keep = string.sub(how, 1, 1), string.sub(how, 3) + 0 end
---------------------------------------- each
local rest = call('PTTL', key)
local permits, last, stale = '', 0, rest == 0
if rest > 0 then
  permits = call('GET', key)
  if #permits == 0 or #permits % 16 ~= 0 then return redis.error_reply('FOREIGN value') end
  last = math.floor(struct.unpack('>I4', permits, #permits - 3) / 2)
elseif rest == -1 then
  return redis.error_reply('FOREIGN key without expiry')
end
local function expiry(i) return struct.unpack('>I4', permits, 16 * i - 3) end
local function left(i) return rest - (last - math.floor(expiry(i) / 2)) % wrap end
local function bytes(at, mark) return struct.pack('>I4', at % wrap * 2 + mark) end

-- Normalize: no permit expires later than if it were granted now, and the expired ones
-- are dropped.
local len = #permits / 16
if rest > period then
  local kept, moved, latest = len, {}, last - (rest - period)
  while kept > 0 and left(kept) > period do kept = kept - 1 end
  for i = kept + 1, len do
    moved[i - kept] = string.sub(permits, 16 * i - 15, 16 * i - 4) .. bytes(latest, expiry(i) % 2)
  end
  permits = string.sub(permits, 1, 16 * kept) .. table.concat(moved)
  last, rest, stale = latest % wrap, period, true
end
local gone, high, probe = 0, len, 0
while gone < high do
  if left(probe + 1) <= 0 then gone = probe + 1 else high = probe end
  probe = math.floor((gone + high) / 2)
end
if gone > 0 then permits = string.sub(permits, 16 * gone + 1) end
local used = len - gone

-- The permits under this ID are neighbours.
local first, held = false, 0
if id ~= '' then
  first = string.find(permits, id, 1, true)
  while first and first % 16 ~= 1 do first = string.find(permits, id, first + 1, true) end
  if first then
    repeat held = held + 1 until string.sub(permits, first + 16 * held, first + 16 * held + 11) ~= id
  end
end

-- Decide.
local granted, wait = asked, 0
if asked > 0 and first and ARGV[6] ~= '1' then
  granted = held
elseif asked > 0 then
  local free = count - used - keep
  if how == '1' and granted > free then granted = math.max(free, 1) end
  if granted + keep > count then
    granted, wait = 0, -1
  elseif granted > free then
    granted, wait = 0, left(granted - free)
  end
  if first and wait >= 0 then granted, wait = 0, math.max(wait, left((first + 15) / 16)) end
elseif asked < 0 and id == '' then
  granted = -used
elseif asked < 0 then
  if first and expiry((first + 15) / 16) % 2 == 0 then granted = -math.min(-asked, held) else granted = 0 end
end

-- Record.
local reset = 0
if granted ~= 0 and not ARGV.dry then
  local mark = 0
  if first then
    local own, after = expiry((first + 15) / 16), string.sub(permits, first + 16 * held)
    if granted < 0 then
      after = string.rep(id .. bytes(math.floor(own / 2), 1), held + granted) .. after
    end
    permits, mark = string.sub(permits, 1, first - 1) .. after, own % 2
  elseif granted < 0 then
    permits = ''
  end
  if granted > 0 then
    permits = permits .. string.rep(id .. bytes(last + period - math.max(rest, 0), mark), granted)
    reset = period
  end
  used = #permits / 16
end
if reset == 0 and used > 0 then reset = left(used) end
if not ARGV.dry and (granted ~= 0 or stale) then
  if reset > 0 then
    call('SET', key, permits, 'PX', reset)
  elseif rest >= 0 then
    call('DEL', key)
  end
end
if granted == asked and granted > 0 then return used end -- alone
return {ARGV.dry and 0 or granted, used, wait, reset}, granted, 0, held
