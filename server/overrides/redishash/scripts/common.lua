local ring = 16384

-- number returns a whole number that a double holds exactly; 0 for any other text.
local function number(text)
  local n = tonumber(text or 0)
  if not n or n ~= n or n < 0 or n > 4503599627370496 then
    return 0
  end
  return math.floor(n)
end

local function get(field) return redis.call('HGET', KEYS[1], field) or nil end

local function version(record) return number(record and string.match(record, '^(%d+) ')) end

local function whole(n) return string.format('%.0f', n) end

local last, highest = number(get('s')), number(get('v'))

-- write stores a record and adds it to the ring of changes.
local function write(field, version, value)
  last, highest = last + 1, math.max(highest, version)
  local record, place = whole(version) .. ' ' .. value, '@' .. whole(last % ring)
  local change = whole(last) .. ' ' .. whole(version) .. ' ' .. field
  redis.call('HSET', KEYS[1], field, record, place, change)
end

local function finish()
  local s, v = whole(last), whole(highest)
  redis.call('HSET', KEYS[1], 's', s, 'v', v)
end

local function change(n) return get('@' .. whole(n % ring)) or '' end

