-- A client of the penstock daemon for nginx with its Lua module, OpenResty, Kong and APISIX. It asks
-- over RESP, on connections that nginx keeps open. README.md shows how it is used.

local _M = {}
local limiter = {}
limiter.__index = limiter

-- new returns a limiter. Options, with their defaults:
--
--     host = "127.0.0.1", port = 6380   the RESP listener; "unix:/path" needs no port
--     password, username                the daemon's token, if it has one
--     timeout = 200                     milliseconds for connecting, and for the answer
--     on_failure = "allow"              or "deny": what take answers without the daemon
--     pool_size = 32, idle = 60000      kept connections of a worker, and for how many milliseconds
function _M.new(options)
  local o = {}
  for name, value in pairs(options or {}) do
    if value ~= ngx.null then o[name] = value end
  end
  local self = {
    host = o.host or "127.0.0.1", port = o.port or 6380, username = o.username, password = o.password,
    timeout = o.timeout or 200, on_failure = o.on_failure or "allow", pool_size = o.pool_size or 32, idle = o.idle or 60000,
  }
  if self.on_failure ~= "allow" and self.on_failure ~= "deny" then
    error('penstock: on_failure: want "allow" or "deny", not ' .. tostring(o.on_failure))
  end
  return setmetatable(self, limiter)
end

-- encode returns a command: an array of strings, whose bytes may be any.
local function encode(args)
  local out = {"*" .. #args .. "\r\n"}
  for _, arg in ipairs(args) do
    arg = tostring(arg)
    out[#out + 1] = "$" .. #arg .. "\r\n" .. arg .. "\r\n"
  end
  return table.concat(out)
end

-- Bounds of an answer. Those of the daemon are far smaller.
local max_items, max_depth, max_bytes = 4096, 4, 65536

-- read_reply returns a value; or nil, a problem, and whether the daemon itself said so.
local function read_reply(sock, depth)
  local line, problem = sock:receive()
  if not line then return nil, problem end
  local kind, rest = line:sub(1, 1), line:sub(2)
  local n = tonumber(rest)
  if kind == "+" then return rest end
  if kind == "-" then return nil, rest, true end
  if kind == ":" and n then return n end
  if (kind == "$" or kind == "*") and n == -1 then return false end
  if kind == "$" and n and n >= 0 and n <= max_bytes then
    local text, err = sock:receive(n + 2)
    if not text then return nil, err end
    return text:sub(1, n)
  end
  if kind ~= "*" or not n or n < 0 or n > max_items or depth > max_depth then return nil, "no answer of penstock: " .. line:sub(1, 40) end
  local all = {}
  for i = 1, n do
    local item, err, said = read_reply(sock, depth + 1)
    if item == nil then return nil, err, said end
    all[i] = item
  end
  return all
end

-- decision_of returns the fields of an answer, with times in seconds.
local function decision_of(reply)
  if type(reply) ~= "table" then return nil end
  local d = {}
  for i = 1, #reply, 2 do
    local name, value = tostring(reply[i]), reply[i + 1]
    local seconds = name:match("^(.*)_ms$")
    if name == "decisions" then
      d.decisions = {}
      for j, part in ipairs(value) do d.decisions[j] = decision_of(part) end
    elseif seconds then
      d[seconds] = value == -1 and math.huge or value / 1000
    else
      d[name] = value or nil
    end
  end
  if d.allowed == nil then return nil end
  d.allowed = d.allowed == 1
  return d
end

-- words returns the arguments of PENSTOCK.TAKE.
local function words(r)
  local args = {"PENSTOCK.TAKE"}
  local function add(...) for _, word in ipairs({...}) do args[#args + 1] = word end end
  if r.key then add("KEY", r.key, "LIMIT", r.limit) end
  if r.cost then add("COST", r.cost) end
  if r.id then add("ID", r.id) end
  if r.at_most then add("ATMOST") end
  if r.keep_free then add("KEEPFREE", r.keep_free) end
  if r.max_delay then add("MAXDELAY", math.floor(r.max_delay * 1000)) end
  if not r.domain then return args end
  add("DOMAIN", r.domain)
  for _, entries in ipairs(r.descriptors or {}) do
    add("ENTRIES", #entries)
    for _, entry in ipairs(entries) do add(entry[1], entry[2]) end
  end
  return args
end

-- connect returns a connection that is authenticated, and whether it was kept from before.
function limiter:connect()
  local sock = ngx.socket.tcp()
  sock:settimeout(self.timeout)
  local pool = table.concat({"penstock", self.host, self.port, self.username or "", self.password or ""}, "|")
  local ok, problem
  if self.host:sub(1, 5) == "unix:" then
    ok, problem = sock:connect(self.host, {pool = pool, pool_size = self.pool_size})
  else
    ok, problem = sock:connect(self.host, self.port, {pool = pool, pool_size = self.pool_size})
  end
  if not ok then return nil, problem end
  if (sock:getreusedtimes() or 0) > 0 then return sock, nil, true end
  if self.password then
    local auth = self.username and {"AUTH", self.username, self.password} or {"AUTH", self.password}
    local sent, err = sock:send(encode(auth))
    if sent then sent, err = read_reply(sock, 1) end
    if not sent then
      sock:close()
      return nil, err
    end
  end
  return sock
end

-- ask sends a command and returns the answer. A kept connection may have been closed meanwhile: then
-- it asks once more, on a new one. If the daemon had read the first command, it is charged twice, which
-- admits too little rather than too much.
function limiter:ask(args)
  local sock, problem, kept = self:connect()
  if not sock then return nil, problem end
  local sent, reply, said
  sent, problem = sock:send(encode(args))
  if sent then reply, problem, said = read_reply(sock, 1) end
  if reply ~= nil or said then
    sock:setkeepalive(self.idle, self.pool_size)
    return reply, problem
  end
  sock:close()
  if kept and problem == "closed" then return self:ask(args) end
  return nil, problem
end

-- take asks for units, by key and limit or by domain and descriptors:
--
--     limiter:take({key = "user:42", limit = "10/1m"})
--     limiter:take({domain = "shop", descriptors = {{{"user", "42"}}, {{"address", "203.0.113.9"}}}})
--
-- It returns a decision: allowed, granted, limit, remaining, retry_after, reset_after and delay in seconds,
-- source, rule, decisions. Without an answer, allowed is what on_failure says, failed is true, and the
-- second value is the reason.
function limiter:take(request)
  local ok, reply, problem = pcall(self.ask, self, words(request))
  local d = ok and decision_of(reply)
  if d then return d end
  if not ok then problem = reply end
  return {allowed = self.on_failure == "allow", failed = true}, tostring(problem or "no answer of penstock")
end

-- address returns the client's address as the daemon counts it: an IPv4 address, or an IPv6 /64.
local function address()
  local raw = ngx.var.binary_remote_addr or ""
  if #raw == 16 and raw:sub(1, 12) == ("\0"):rep(10) .. "\255\255" then raw = raw:sub(13) end
  if #raw == 4 then return table.concat({raw:byte(1, 4)}, ".") end
  if #raw ~= 16 then return ngx.var.remote_addr end -- a Unix socket
  local groups = {}
  for i = 1, 8, 2 do groups[#groups + 1] = string.format("%x", raw:byte(i) * 256 + raw:byte(i + 1)) end
  while groups[#groups] == "0" do groups[#groups] = nil end
  return table.concat(groups, ":") .. "::/64"
end

-- one returns a value that must not be repeated: applications differ in which of several they use.
local function one(value, what)
  if type(value) == "table" then return nil, what .. " is there more than once" end
  return (value == nil or value == true) and "" or value
end

-- trim returns a text without the spaces around it, in linear time: the client chooses the text.
local function trim(text)
  local from, to = text:find("%S"), #text
  while to > 0 and text:find("^%s", to) do to = to - 1 end
  return text:sub(from or 1, to)
end

-- unescape decodes %61 and the like, and leaves what is no escape. A space and a plus are the same to some applications.
local function unescape(text)
  text = text:gsub("%%(%x%x)", function(hex) return string.char(tonumber(hex, 16)) end)
  return (text:gsub(" ", "+"))
end

-- plain puts a space for what only some applications trim: in Python and JavaScript all that Unicode calls a space, and
-- where they read Latin-1, bytes that are not UTF-8.
local function plain(text)
  return (text:gsub("[\128-\255]+", function(run)
    local rest = run:gsub("\194[\133\160]", ""):gsub("\225\154\128", ""):gsub("\226\128[\128-\138\168\169\175]", "")
    rest = rest:gsub("\226\129\159", ""):gsub("\227\128\128", ""):gsub("\239\187\191", "")
    if rest == "" or not run:find("[^\133\160]") then return " " end
  end))
end

-- parts returns the parts of a name: [a][b] and a[b] are one to Express.
local function parts(name)
  local all = {}
  for part in trim(name:match("^%Z*")):lower():gsub("[. +]", "_"):gmatch("[^%[%]]+") do all[#all + 1] = part end
  return all
end

-- is_similar returns whether some applications take a name for another: by PHP's rules for names of variables, as the
-- name of an array or of its element, in brackets, or in other case.
local function is_similar(other, name)
  local all, want = parts(other), parts(name)
  for i, part in ipairs(want) do
    if all[i] ~= part then return false end
  end
  return #want > 0 or other == name
end

-- unique returns a value, or a problem if it was found more than once, or under a similar name beside.
local function unique(value, what, found, similar)
  if found > 1 then return nil, what .. " is there more than once" end
  if similar ~= found then return nil, what .. ": some applications take another one for it" end
  return value
end

-- similar_cookies counts the places where some application finds a cookie of that name: in Python spaces separate
-- cookies too, elsewhere commas do, or what is in quotes is not skipped.
local function similar_cookies(lines, name)
  local n, from, at = 0, 1, lines:find("=", 1, true)
  while at do
    local before = trim(lines:sub(from, at - 1))
    local pair = before:match("^.*;(.*)$") or before
    local last = pair:match('^.*[,"%s](.*)$') or pair
    if is_similar(pair, name) or is_similar(last, name) or is_similar(unescape(last), name) then n = n + 1 end
    from, at = at + 1, lines:find("=", at + 1, true)
  end
  return n
end

-- cookie returns the value of a cookie as the daemon counts it: spellings that some applications read as one are one,
-- and those that they may read as different ones are a problem. A pattern that finds names and values at once would
-- take quadratic time, and a long cookie would block nginx.
local function cookie(name)
  local lines, value, found = ngx.req.get_headers(0)["cookie"] or "", "", 0
  if type(lines) == "table" then lines = table.concat(lines, ";") end
  lines = plain(lines)
  for pair in lines:gmatch("[^;]+") do
    local at = pair:find("=", 1, true)
    if at and trim(pair:sub(1, at - 1)) == name then value, found = trim(pair:sub(at + 1)), found + 1 end
  end
  value = value:match('^"(.*)"$') or value
  if value:find('[%s"\\]') then return nil, "cookie " .. name .. ": want no spaces, quotes and backslashes in it" end
  return unique(unescape(value), "cookie " .. name, found, similar_cookies(lines, name))
end

-- read_query returns the value of a parameter, how many there are, and how many of all names that some applications
-- take for it.
local function read_query(args, name)
  local value, found, similar = "", 0, 0
  for other, values in pairs(ngx.decode_args(args, 0)) do
    local n = type(values) == "table" and #values or 1
    if other == name then value, found = values, n end
    if is_similar(other, name) then similar = similar + n end
  end
  return type(value) == "string" and value or "", found, similar
end

-- query returns the value of a parameter, which applications that separate parameters by semicolons too must not read
-- differently.
local function query(name)
  local what, args = "parameter " .. name, ngx.var.args or ""
  local value, found, similar = read_query(args, name)
  local value2, found2, similar2 = read_query((args:gsub(";", "&")), name)
  if value ~= value2 or found ~= found2 or similar ~= similar2 then
    return nil, what .. ": some applications separate parameters by semicolons"
  end
  return unique(value, what, found, similar)
end

-- All headers and parameters are read, not nginx's first hundred: a client could hide one behind others.
local named = {
  header = function(name) return one(ngx.req.get_headers(0)[name], "header " .. name) end,
  query = query,
  cookie = cookie,
  address = function() return nil, "address has no name here: nginx's real_ip_header sets it" end,
}
local unnamed = {address = address, path = function() return ngx.var.uri end}

-- describe returns the descriptors of the current request, from texts such as "user=header:X-User" or
-- "service=web,path=path". Values are header:NAME, cookie:NAME, query:NAME, address, path, or the text
-- itself. A value that is there twice is nil and a problem.
function _M.describe(texts)
  local descriptors = {}
  for i, text in ipairs(texts) do
    local entries = {}
    for key, value in text:gmatch("([^=,]+)=([^,]*)") do
      local source, name = value:match("^(%l+):(.*)$")
      local get, problem = source and named[source] or unnamed[value], nil
      if get then value, problem = get(name) end
      if not value then return nil, problem end
      entries[#entries + 1] = {key, value}
    end
    descriptors[i] = entries
  end
  return descriptors
end

-- decide decides about the current request, by a domain and texts for describe, and holds it for its delay.
-- It returns nil if the request may pass; or a status, and a table of header fields.
function limiter:decide(domain, texts)
  local descriptors, problem = _M.describe(texts)
  if not descriptors then
    ngx.log(ngx.WARN, "penstock: ", problem)
    return 400, {}
  end
  local d, err = self:take({domain = domain, descriptors = descriptors})
  if err then ngx.log(ngx.ERR, "penstock: ", err) end
  if d.allowed then
    if (d.delay or 0) > 0 then ngx.sleep(d.delay) end
    return nil
  end
  if d.failed then return 503, {} end
  local fields = {}
  if d.retry_after and d.retry_after < math.huge then fields["Retry-After"] = math.ceil(d.retry_after) end
  return 429, fields
end

-- access ends the current request in nginx's access phase if it may not pass.
function limiter:access(domain, texts)
  local status, fields = self:decide(domain, texts)
  if not status then return end
  for name, value in pairs(fields) do ngx.header[name] = value end
  return ngx.exit(status)
end

-- A gateway's plugin has one limiter for each of its configurations, which are tables that it keeps.
local limiters = setmetatable({}, {__mode = "k"})

-- of returns the limiter of a configuration.
function _M.of(config)
  if not limiters[config] then limiters[config] = _M.new(config) end
  return limiters[config]
end

return _M
