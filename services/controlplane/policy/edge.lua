-- What the edge answers by itself: who a caller is whom edge-auth has named a moment ago, that a credential was just
-- refused, and that a tenant is far from its limits. Whatever is not known here is asked, as if this were not there:
-- an error in this file leaves the request to edge-auth. Why it is safe: docs/adr/0026-known-at-the-edge.md.
--
-- The filter before this one sets "weir.epoch" to the registry's revision at the last revocation, and to the rules by
-- which callers stand in rollouts. Edge-auth and the limiter leave what they said in metadata of their own, and
-- `envoy_on_response` learns from it: every filter has a Lua state of its own, in each worker thread and part of a
-- listener, so the filter that uses it must be the one that learns. Times are milliseconds.

local CLASSES = {} -- what is counted by the gateway too, by the scope that it needs: filled from libs/paths.py
local PREDICT = "/inference.GRPCInferenceService/ModelInfer"
local FRESH = 1800 -- a verdict is gone by without asking
local STALE = 10000 -- and so long while one request in AGAIN asks anew: edge-auth may be away, or first tokens slow
local AGAIN = 500
local REFUSED = 1000 -- a refusal is repeated
local GRANT = 3 -- times its own length a grant lasts while one request in AGAIN asks anew
local FAILURES = 20 -- refusals of strangers of one source in WINDOW, then 429
local WINDOW = 1000
local SMALL = 16384 -- bytes of a body that is read before its request is refused
local LONGEST = 2048 -- bytes of a credential that is remembered
local NAME = 256 -- bytes of a model's name in a path
local ROOM, ROOM_REFUSED = 1048576, 262144 -- bytes of a generation, about; there are two
local TENANTS, SOURCES, SLOTS = 10000, 10000, 1024

local function memory(room) return {young = {}, old = {}, size = 0, room = room} end
local known, refused = memory(ROOM), memory(ROOM_REFUSED)
local places = memory(ROOM) -- where callers stand among the versions of a model
local grants, tenants = {}, 0 -- by tenant: how many requests the limiter need not be asked about
local waiting, turn = {}, 0 -- a ring: requests that somebody was asked about, until their answers come
local failures, window, sources = {}, 0, 0 -- of strangers, by source, in this WINDOW
local unsaid, silent = {}, 0 -- by source: refusals of which edge-auth was not told
local epoch = 0
local aged = 0 -- when the memories were last turned for their age

local function get(from, key) return from.young[key] or from.old[key] end

local function forget(from, key) from.young[key], from.old[key] = nil, nil end

local function turn_over(each) each.old, each.young, each.size = each.young, {}, 0 end

local function put(into, key, entry)
  if into.size > into.room then turn_over(into) end
  if into.young[key] == nil then into.size = into.size + #key + 512 end
  into.young[key] = entry
end

-- Credentials are not kept for longer than they serve: called with every request, whatever it is. What is older than
-- STALE is worth nothing.
local function age(now)
  local since = now - aged
  if since >= 0 and since <= STALE then return end
  for _, each in ipairs({known, refused, places}) do
    turn_over(each)
    if since > 2 * STALE then turn_over(each) end
  end
  for place, slot in pairs(waiting) do -- answers that were broken off do not come
    if math.abs(now - slot.at) > STALE then waiting[place] = nil end
  end
  aged = now
end

-- The only value of a header; "" without one, nil where there may be several: Envoy puts a comma between them.
local function single(headers, name)
  local value = headers:get(name)
  if value == nil then return "" end
  return not string.find(value, ",", 1, true) and value or nil
end

-- Where a caller is: an IPv4 address or an IPv6 /64, out of "192.0.2.1:4711" or "[2001:db8::1]:4711".
local function source(address)
  local long = string.match(address, "^%[(.*)%]")
  if long == nil then return string.sub(address, 1, (string.find(address, ":", 1, true) or 0) - 1) end
  if string.find(long, ".", 1, true) then return long end
  local groups, rest = {}, {}
  local head, tail = string.match(long, "^(.-)::(.*)$")
  for group in string.gmatch(head or long, "%x+") do groups[#groups + 1] = group end
  for group in string.gmatch(tail or "", "%x+") do rest[#rest + 1] = group end
  while #groups + #rest < 8 do groups[#groups + 1] = "0" end
  for _, group in ipairs(rest) do groups[#groups + 1] = group end
  return table.concat(groups, ":", 1, 4)
end

local function alive(entry, revision, now)
  return entry ~= nil and entry.rev >= revision and now >= entry.at and now < entry.ends
end

local function usable(entry, revision, now)
  return alive(entry, revision, now) and (now < entry.fresh or now < entry.asked + AGAIN)
end

-- What a path of the Open Inference Protocol over HTTP names: a model, "name" or "name@version", and whether it is to
-- predict. Nil for all other paths, and for names that no model has: those are for any predictor to refuse.
local function named(path)
  local name, more = string.match(path, "^/v2/models/([^/?]+)([^?]*)")
  if name == nil or (name == "stats" and more == "") then return nil end
  name = string.gsub(name, "%%(%x%x)", function(code) return string.char(tonumber(code, 16)) end)
  local version, rest = string.match(more, "^/versions/([%w._%-]+)(.*)$")
  if version ~= nil then
    more = rest
    if string.sub(name, -#version - 1) ~= "@" .. version then name = name .. "@" .. version end
  end
  if #name > NAME or not string.match(name, "^[%w._@%-]+$") then return nil end
  return name, more == "/infer"
end

local function unheard(from)
  if unsaid[from] == nil then
    if silent >= SOURCES then unsaid, silent = {}, 0 end
    silent = silent + 1
  end
  unsaid[from] = (unsaid[from] or 0) + 1
end

local function failed(from, now)
  local this = math.floor(now / WINDOW)
  if this ~= window then failures, window, sources = {}, this, 0 end
  if failures[from] == nil then
    if sources >= SOURCES then return end
    sources = sources + 1
  end
  failures[from] = (failures[from] or 0) + 1
end

local function fails_too_often(from, now)
  return window == math.floor(now / WINDOW) and (failures[from] or 0) >= FAILURES
end

local function refuse(handle, entry)
  -- An answer to half a request ends an HTTP/1 connection, and the caller would pay, and cost, another handshake. Over
  -- HTTP/2 it ends nothing but the stream, and who has no key could hold many streams of a connection by no body.
  local length = tonumber(handle:headers():get("content-length") or "")
  if length ~= nil and length <= SMALL and handle:streamInfo():protocol() == "HTTP/1.1" then handle:body(true) end
  local headers = {[":status"] = entry.status}
  if entry.kind ~= nil then headers["content-type"] = entry.kind end
  if entry.challenge ~= nil then headers["www-authenticate"] = entry.challenge end
  if entry.later ~= nil then headers["retry-after"] = entry.later end
  handle:respond(headers, entry.body)
end

local TOO_OFTEN = {status = "429", later = "1", body = "too many refused requests from this address; try again later"}

-- Takes one request out of the tenant's grant; false where the limiter is to be asked.
local function granted(tenant, now)
  local grant = grants[tenant]
  if grant == nil then return false end
  if now >= grant.at and now < grant.ends and grant.left > 0 and (now < grant.fresh or now < grant.asked + AGAIN) then
    grant.left = grant.left - 1
    return true
  end
  grant.asked = now
  return false
end

-- As edge-auth would have answered. What it says is said last: edge-auth decides by the credential should this fail
-- before, and overwrites the rest. The credential itself leaves with the route. Tensors are no tokens.
local function admit(headers, metadata, entry, place, tensors)
  if place ~= nil then
    if place.hidden then headers:remove("x-weir-model") end
    if place.bucket ~= nil then headers:replace("x-weir-bucket", string.format("%d", place.bucket)) end
    if place.rollout ~= nil then headers:replace("x-weir-rollout", place.rollout) end
  end
  headers:replace("x-weir-tenant", entry.tenant)
  headers:replace("x-weir-plan", entry.plan)
  headers:replace("x-weir-scopes", entry.scopes)
  headers:replace("x-weir-key-id", entry.key_id)
  if not tensors then
    local length = headers:get("content-length") or ""
    local bytes = #length < 16 and string.match(length, "^%d+$") and tonumber(length) or 4
    headers:replace("x-weir-estimated-tokens", string.format("%d", math.max(1, math.floor(bytes / 4))))
  end
  metadata:set("weir.edge", "known", true)
end

local function await(metadata, slot)
  turn = turn + 1
  slot.turn = turn
  waiting[turn % SLOTS] = slot
  metadata:set("weir.edge", "turn", turn)
end

function envoy_on_request(handle)
  local headers = handle:headers()
  local path = headers:get(":path")
  local model, infers = named(path)
  if string.sub(path, 1, 4) == "/v2/" then headers:remove("x-weir-model") end -- the path says it
  if model ~= nil then headers:replace("x-weir-model", model) end
  local info = handle:streamInfo()
  local metadata = info:dynamicMetadata()
  local now = handle:timestamp()
  age(now)
  local pushed = metadata:get("weir.epoch")
  local revision = pushed and pushed.rev or 0
  if revision == 0 then return end -- switched off, or not told yet
  if revision < epoch then -- the registry was restored: its revisions mean something else
    known, refused, places = memory(ROOM), memory(ROOM_REFUSED), memory(ROOM)
  end
  epoch = revision
  local class = infers and "i" or CLASSES[path]
  if class == nil then return end
  local bearer, key, other =
    single(headers, "authorization"), single(headers, "api-key"), single(headers, "x-api-key")
  if bearer == nil or key == nil or other == nil then return end -- which of them counts is edge-auth's to say
  local shown = bearer ~= "" and "b" .. bearer or "k" .. (key ~= "" and key or other)
  if #shown > LONGEST then return end
  local grpc = string.sub(headers:get("content-type") or "", 1, 16) == "application/grpc"
  local from = source(info:downstreamRemoteAddress())
  -- A refusal reads differently in each of these.
  local name = class .. (grpc and "g " or infers and "v " or "h ") .. from .. " " .. shown
  local entry, place, where = get(known, name), nil, nil
  local tensors = infers or path == PREDICT
  if tensors then
    local asked, user, session =
      single(headers, "x-weir-model"), single(headers, "x-weir-user"), single(headers, "x-weir-session")
    if asked == nil or user == nil or session == nil then return end
    if asked ~= "" then
      where = table.concat({name, asked, user, session}, "\n")
      if #where > LONGEST then return end
      place = get(places, where)
    end
  end
  if place ~= nil and place.rules ~= pushed.rules then place = nil end
  if usable(entry, revision, now) and (where == nil or usable(place, revision, now)) then
    if not granted(entry.tenant, now) then
      headers:replace("x-weir-ask", entry.tenant)
      await(metadata, {tenant = entry.tenant, at = now})
    end
    return admit(headers, metadata, entry, place, tensors)
  end
  if place ~= nil then place.asked = now end
  if entry ~= nil then
    entry.asked = now -- this request asks; the others go on with what is known
  else -- a stranger; those who were good before are never held up
    local said = get(refused, name)
    if alive(said, revision, now) then
      unheard(from)
      return refuse(handle, said)
    end
    if fails_too_often(from, now) then
      unheard(from)
      return refuse(handle, TOO_OFTEN)
    end
    if unsaid[from] ~= nil then
      headers:replace("x-weir-refused", string.format("%d", unsaid[from]))
      unsaid[from], silent = nil, silent - 1
    end
  end
  await(metadata, {name = name, where = where, from = from, at = now, stranger = entry == nil})
end

-- Which version it leads to is Envoy's routes to say, which are told of rollouts by themselves.
local function learn_place(slot, said)
  local before = get(places, slot.where)
  if before ~= nil and before.at > slot.at then return end
  forget(places, slot.where)
  put(places, slot.where, {
    rev = said.rev, rules = said.rules, at = slot.at, asked = slot.at,
    fresh = slot.at + math.min(FRESH, said.ttl), ends = slot.at + math.min(STALE, said.ttl),
    bucket = said.bucket, rollout = said.rollout, hidden = said.hidden,
  })
end

local function learn_verdict(slot, said)
  local before = get(known, slot.name)
  local present = before or get(refused, slot.name)
  if said.rev < epoch then return end -- a late answer: of before the revocation
  if slot.where ~= nil and not said.refused and said.ttl ~= nil and said.ttl > 0 then learn_place(slot, said) end
  if present ~= nil and present.rev >= epoch and present.at > slot.at then return end -- of before somebody asked again
  forget(known, slot.name)
  forget(refused, slot.name)
  local entry = {rev = said.rev, at = slot.at}
  if said.refused then
    entry.ends, entry.status, entry.body = slot.at + REFUSED, string.format("%d", said.status), said.body
    entry.kind, entry.challenge = said.kind, said.challenge
    put(refused, slot.name, entry)
  elseif said.tenant ~= nil and said.ttl > 0 then
    entry.tenant, entry.plan, entry.scopes, entry.key_id = said.tenant, said.plan, said.scopes, said.key_id
    entry.asked = before ~= nil and math.max(before.asked, slot.at) or slot.at
    entry.fresh, entry.ends = slot.at + math.min(FRESH, said.ttl), slot.at + math.min(STALE, said.ttl)
    put(known, slot.name, entry)
  end
end

-- A grant is as old as the question: an answer that ends late says nothing of now, be it a grant or none.
local function learn_grant(tenant, said, at, now)
  local before = grants[tenant]
  if before ~= nil and before.at > at and before.at <= now then return end -- of before somebody asked again
  if before == nil then
    if tenants >= TENANTS then grants, tenants = {}, 0 end
    tenants = tenants + 1
  end
  grants[tenant] = {
    left = said.free, at = at, fresh = at + said.ms, ends = at + GRANT * said.ms,
    asked = before ~= nil and math.max(before.asked, at) or at,
  }
end

local function learn(handle)
  local metadata = handle:streamInfo():dynamicMetadata()
  local mine = metadata:get("weir.edge")
  local slot = mine ~= nil and mine.turn ~= nil and waiting[mine.turn % SLOTS] or nil
  if slot == nil or slot.turn ~= mine.turn then return end
  waiting[mine.turn % SLOTS] = nil
  local now = handle:timestamp()
  local verdict, tenant = metadata:get("envoy.filters.http.ext_authz"), slot.tenant
  if slot.name ~= nil and verdict ~= nil and verdict.rev ~= nil then
    if verdict.refused and slot.stranger then failed(slot.from, now) end
    tenant = verdict.tenant
    learn_verdict(slot, verdict)
  end
  local limiter = metadata:get("envoy.filters.http.ratelimit")
  if tenant ~= nil and limiter ~= nil and limiter.free ~= nil then learn_grant(tenant, limiter, slot.at, now) end
end

-- The gateway answers OpenAI errors as ordinary bodies with the status beside them, since a transcoded gRPC failure has
-- no room for the envelope. gRPC answers keep their :status of 200.
local function take_status(headers)
  local status = headers:get("x-weir-http-status")
  if status == nil then return end
  headers:remove("x-weir-http-status")
  local number = tonumber(status)
  if number == nil or number < 200 or number > 599 then return end
  if string.sub(headers:get("content-type") or "", 1, 16) == "application/grpc" then return end
  headers:replace(":status", status)
end

-- A field of a protobuf message: text, or another message, of less than 16 KiB.
local function field(number, text)
  local length = #text
  local size = length < 128 and string.char(length) or string.char(length % 128 + 128, math.floor(length / 128))
  return string.char(number * 8 + 2) .. size .. text
end

-- gRPC itself refuses a message beyond a server's bound, before any of our code sees the call, and without the details
-- that all other refusals have (libs.errors). Here it gets them.
local function tell_size(handle)
  local headers = handle:headers()
  if headers:get("grpc-status") ~= "8" or headers:get("grpc-status-details-bin") ~= nil then return end
  local said = headers:get("grpc-message") or ""
  local what, has, may = string.match(said, "(%a+) message larger than max %((%d+) vs%. (%d+)%)")
  if what == nil then return end
  what = what == "Sent" and "answer" or "message"
  local message = string.format("the %s has %s bytes, and may have %s", what, has, may)
  local limit = field(1, "limit") .. field(2, "max_message_bytes")
  local info = field(1, "PAYLOAD_TOO_LARGE") .. field(2, "weir") .. field(3, limit)
  local detail = field(1, "type.googleapis.com/google.rpc.ErrorInfo") .. field(2, info)
  headers:replace("grpc-message", message)
  headers:replace("grpc-status-details-bin", handle:base64Escape("\8\8" .. field(2, message) .. field(3, detail)))
  headers:replace("x-weir-reason", "PAYLOAD_TOO_LARGE")
end

function envoy_on_response(handle)
  take_status(handle:headers())
  tell_size(handle)
  learn(handle)
end
