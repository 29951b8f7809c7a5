-- Appends of one small event over HTTP, for wrk. By hand:
--
--   wrk -t1 -c64 -d10s --latency -s lab/wrk/append.lua http://127.0.0.1:2113 -- 7 10000 50
--
-- Arguments: seed, number of streams, bytes of data. Every event gets an id of its own, so that what
-- is stored can be counted afterwards; `gesta-lab http` runs this script and does so.
-- The last line of the output is one JSON object after the word `gesta-lab`.

local threads = 0

function setup(thread)
  threads = threads + 1
  thread:set("number", threads)
end

function init(args)
  seed = tonumber(args[1] or "7")
  streams = tonumber(args[2] or "10000")
  local bytes = tonumber(args[3] or "50")
  math.randomseed(seed * 1000 + number)
  -- Part of every id: tells this run and thread from others.
  run = string.format("%08x-%04x-8%03x-8%03x-", math.random(0, 0x7fffffff), math.random(0, 0xffff), math.random(0, 0xfff), number)
  local data = '{"seat":"R12-04","by":"0123456789ab","note":""}'
  data = data:sub(1, -3) .. string.rep("x", math.max(0, bytes - #data)) .. data:sub(-2)
  before = '{"expected":"any","events":[{"id":"' .. run
  after = '","type":"SeatReserved","data":' .. data .. '}]}'
  headers = { ["Content-Type"] = "application/json" }
  sent = 0
end

function request()
  sent = sent + 1
  local body = before .. string.format("%012x", sent) .. after
  return wrk.format("POST", "/streams/show-" .. math.random(1, streams), headers, body)
end

function done(summary, latency, requests)
  io.write(string.format(
    'gesta-lab {"requests":%d,"duration_us":%d,"connect":%d,"read":%d,"write":%d,"status":%d,"timeout":%d,' ..
    '"p50_us":%d,"p90_us":%d,"p99_us":%d,"p999_us":%d,"max_us":%d}\n',
    summary.requests, summary.duration, summary.errors.connect, summary.errors.read, summary.errors.write,
    summary.errors.status, summary.errors.timeout, latency:percentile(50), latency:percentile(90),
    latency:percentile(99), latency:percentile(99.9), latency.max))
end
