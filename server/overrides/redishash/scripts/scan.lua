-- Returns a page of all records: the next cursor, the number and text of the last change, the
-- horizon, and fields with their records. ARGV is the cursor and the size of a page.
local page = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local reply = {page[1], whole(last), last > 0 and change(last) or '', whole(number(get('h')))}
for i = 1, #page[2], 2 do
  local field, record = page[2][i], page[2][i + 1]
  if string.sub(field, 1, 1) == ':' and #field + #record <= 8192 then
    reply[#reply + 1] = field
    reply[#reply + 1] = record
  end
end
return reply
