{{/*
What the operator does in a namespace with jobs. Server-side apply takes patch and create; events of
a namespace that is being deleted are refused, which the operator bears.
*/}}
{{- define "moorage.operatorRules" -}}
- apiGroups: [moorage.dev]
  resources: [statefulsparkjobs]
  verbs: [get, list, watch, patch]
- apiGroups: [moorage.dev]
  resources: [statefulsparksnapshots]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [moorage.dev]
  resources: [statefulsparkjobs/status, statefulsparksnapshots/status]
  verbs: [update]
# Objects that block their owner's deletion may be made only by who may write its finalizers.
- apiGroups: [moorage.dev]
  resources: [statefulsparkjobs/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, create, patch, delete]
# Volumes that executors of jobs with state.local.type ReusedPVC leave to others.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, create, patch]
# The token of a job's endpoint, and the credentials that its spec names.
- apiGroups: [""]
  resources: [secrets]
  verbs: {{ ternary "[get, create]" "[create]" (or .Values.stores.readSecrets (not (empty .Values.watchNamespaces))) }}
- apiGroups: [""]
  resources: [serviceaccounts, namespaces]
  verbs: [get]
# Whether there is room for the pods of a job, before they are made.
- apiGroups: [""]
  resources: [limitranges, resourcequotas]
  verbs: [list]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [get, list, create, patch, delete]
# Of jobs with spec.failurePolicy.disruptionBudget.
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, create, patch, delete]
# Of jobs with spec.observability.ui.ingressTemplate.
- apiGroups: [networking.k8s.io]
  resources: [ingresses]
  verbs: [get, list, create, patch, delete]
# Of jobs with spec.observability.metrics.podMonitor.
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, list, create, patch, delete]
{{- end }}
