-- The health of a StatefulSparkSnapshot, for Argo CD.
local status = obj.status or {}
local health = {status = "Progressing", message = status.message or ""}
if status.state == "Completed" then
  health.status = "Healthy"
  health.message = status.path or ""
elseif status.state == "Failed" or status.state == "Abandoned" then
  health.status = "Degraded"
end
return health
