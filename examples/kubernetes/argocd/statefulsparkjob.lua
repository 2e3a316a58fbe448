-- The health of a StatefulSparkJob, for Argo CD.
local health = {status = "Progressing", message = "the operator has not looked at it yet"}
local status = obj.status
if status == nil or status.phase == nil then
  return health
end

local function condition(name)
  for _, one in ipairs(status.conditions or {}) do
    if one.type == name then
      return one
    end
  end
  return {status = "Unknown", message = ""}
end

if obj.metadata.deletionTimestamp ~= nil then
  health.message = "being deleted"
  return health
end
-- What the status says is about an older spec.
if (status.observedGeneration or 0) < obj.metadata.generation then
  health.message = "the newest spec has not been looked at yet"
  return health
end

local phase = status.phase
local message = phase
if status.message ~= nil and status.message ~= "" then
  message = phase .. ": " .. status.message
end
health.message = message

local valid, reconciled = condition("SpecValid"), condition("Reconciled")
if valid.status == "False" then
  health.status = "Degraded"
  health.message = valid.message
elseif reconciled.status == "False" and reconciled.reason == "Rejected" then
  -- Its preflight failed, or it was rolled back: another version runs than Git says.
  health.status = "Degraded"
  health.message = reconciled.message
elseif phase == "Blocked" or phase == "Failed" then
  health.status = "Degraded"
elseif phase == "Suspended" then
  health.status = "Suspended"
elseif phase == "Finished" then
  health.status = "Healthy"
elseif condition("Ready").status == "True" and (phase == "Running" or phase == "Stable") then
  health.status = "Healthy"
elseif phase == "BackOff" then
  health.status = "Degraded"
end
return health
