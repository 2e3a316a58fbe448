{{/* The chart's name, or what stands in its place. */}}
{{- define "moorage.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* What names of objects begin with; 50 characters leave room for endings. */}}
{{- define "moorage.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "moorage.name" .) .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "moorage.name" .) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Names of objects without a namespace must differ between namespaces. */}}
{{- define "moorage.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "moorage.fullname" .) }}
{{- end }}

{{- define "moorage.chart" -}}
{{- printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* What a selector rests on: never changes. Where `shard` is in the context, of that shard's operator alone. */}}
{{- define "moorage.selectorLabels" -}}
app.kubernetes.io/name: {{ include "moorage.name" . }}-operator{{ with .shard }}-{{ . }}{{ end }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* What the pods of all operators of the release have, and no others. */}}
{{- define "moorage.everyOperator" -}}
{{- if .Values.shards -}}
app.kubernetes.io/part-of: moorage
app.kubernetes.io/instance: {{ .Release.Name }}
{{- else -}}
{{- include "moorage.selectorLabels" . }}
{{- end }}
{{- end }}

{{/* The name of an operator: of a shard, where `shard` is in the context. */}}
{{- define "moorage.operatorName" -}}
{{- include "moorage.fullname" . }}{{ with .shard }}-{{ . }}{{ end }}
{{- end }}

{{- define "moorage.labels" -}}
helm.sh/chart: {{ include "moorage.chart" . }}
{{ include "moorage.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: moorage
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The annotations of an object; takes (dict "root" $ "more" map). */}}
{{- define "moorage.annotations" -}}
{{- $all := merge (dict) (default (dict) .more) .root.Values.commonAnnotations }}
{{- if $all -}}
annotations:
  {{- toYaml $all | nindent 2 }}
{{- end }}
{{- end }}

{{- define "moorage.image" -}}
{{- $image := .Values.image }}
{{- $name := ternary (printf "%s/%s" $image.registry $image.repository) $image.repository (ne $image.registry "") }}
{{- if $image.digest }}
{{- printf "%s@%s" $name $image.digest }}
{{- else }}
{{- printf "%s:%s" $name (default .Chart.AppVersion $image.tag) }}
{{- end }}
{{- end }}

{{- define "moorage.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "moorage.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "moorage.leaseName" -}}
{{- printf "%s-leader" (include "moorage.operatorName" .) }}
{{- end }}

{{/* The fleet file as values say it; empty if they say nothing. */}}
{{- define "moorage.fleetRules" -}}
{{- $said := dict }}
{{- range $name := list "profile" "profiles" "limits" "namespaces" }}
{{- with get $.Values.fleet $name }}
{{- $said = set $said $name . }}
{{- end }}
{{- end }}
{{- with $said }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{/* The ConfigMap with the fleet file; empty if there is none. */}}
{{- define "moorage.fleetName" -}}
{{- if .Values.fleet.configMap }}
{{- .Values.fleet.configMap }}
{{- else if include "moorage.fleetRules" . }}
{{- printf "%s-fleet" (include "moorage.fullname" .) }}
{{- end }}
{{- end }}

{{/* The namespaces with jobs, as a JSON list; it may be empty. */}}
{{- define "moorage.jobNamespaces" -}}
{{- .Values.jobs.namespaces | default .Values.watchNamespaces | uniq | toJson }}
{{- end }}

{{/* What a schema cannot say. */}}
{{- define "moorage.validate" -}}
{{- if .Values.watchNamespaceSelector }}
{{- if .Values.watchNamespaces }}
{{- fail (printf "watchNamespaceSelector is %s, and watchNamespaces names %s: only one of them can hold; leave out the other" .Values.watchNamespaceSelector (join ", " .Values.watchNamespaces)) }}
{{- end }}
{{- if and .Values.rbac.create (not .Values.rbac.clusterScoped) }}
{{- fail (printf "watchNamespaceSelector is %s, and rbac.clusterScoped is false: nobody knows which namespaces will have these labels, so the operator needs a ClusterRole; set rbac.clusterScoped to true, or list the namespaces in watchNamespaces" .Values.watchNamespaceSelector) }}
{{- end }}
{{- if not .Values.leaderElection.enabled }}
{{- fail (printf "watchNamespaceSelector is %s, and leaderElection.enabled is false: by its Lease a job changes hands when its namespace does; set it to true" .Values.watchNamespaceSelector) }}
{{- end }}
{{- end }}
{{- if and .Values.rbac.create (not .Values.rbac.clusterScoped) }}
{{- if not .Values.watchNamespaces }}
{{- fail "rbac.clusterScoped is false, and watchNamespaces is empty: an operator of all namespaces needs a ClusterRole; list the namespaces in watchNamespaces" }}
{{- end }}
{{- if not .Values.clusterId }}
{{- fail "rbac.clusterScoped is false, and clusterId is empty: the operator may not read the uid of kube-system then; choose a name for the cluster and set clusterId" }}
{{- end }}
{{- end }}
{{- if and (gt (int .Values.replicas) 1) (not .Values.leaderElection.enabled) }}
{{- fail (printf "replicas is %v, and leaderElection.enabled is false: all of them would act at once; set it to true, or replicas to 1" .Values.replicas) }}
{{- end }}
{{- if and .Values.shards (not .Values.leaderElection.enabled) }}
{{- fail (printf "shards is %v, and leaderElection.enabled is false: by their Leases operators know whose a job is; set it to true, or shards to []" .Values.shards) }}
{{- end }}
{{- range .Values.shards }}
{{- $lease := include "moorage.leaseName" (merge (dict "shard" .) $) }}
{{- if gt (len $lease) 63 }}
{{- fail (printf "shards names %s, and the Lease's name %s would have %d characters of at most 63; set a shorter fullnameOverride, or name the shard shorter" . $lease (len $lease)) }}
{{- end }}
{{- end }}
{{- range $value := list "jobs.namespaces" "watchNamespaces" }}
{{- $named := ternary $.Values.jobs.namespaces $.Values.watchNamespaces (eq $value "jobs.namespaces") }}
{{- if has $.Release.Namespace $named }}
{{- fail (printf "%s names %s, the release's own namespace: who may make pods there may use the operator's service account, and a job's driver may; make a namespace for jobs and name that" $value $.Release.Namespace) }}
{{- end }}
{{- end }}
{{- if and .Values.watchNamespaces .Values.jobs.namespaces }}
{{- range .Values.jobs.namespaces }}
{{- if not (has . $.Values.watchNamespaces) }}
{{- fail (printf "jobs.namespaces names %s, which is not in watchNamespaces: no operator would look after its jobs; add it to watchNamespaces" .) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and .Values.fleet.configMap (include "moorage.fleetRules" .) }}
{{- fail (printf "fleet has rules of its own, and fleet.configMap is %s: only one of them can hold; leave out the other" .Values.fleet.configMap) }}
{{- end }}
{{- if and .Values.metrics.serviceMonitor.enabled .Values.metrics.podMonitor.enabled }}
{{- fail "metrics.serviceMonitor.enabled and metrics.podMonitor.enabled are both true: everything would be counted twice; set one of them to false" }}
{{- end }}
{{- if and .Values.metrics.serviceMonitor.enabled (not .Values.metrics.service.enabled) }}
{{- fail "metrics.serviceMonitor.enabled is true, and metrics.service.enabled is false: there is nothing to monitor; set it to true, or use metrics.podMonitor" }}
{{- end }}
{{- if le (int .Values.terminationGracePeriodSeconds) (int .Values.settings.stopGrace) }}
{{- fail (printf "terminationGracePeriodSeconds is %v, and settings.stopGrace is %v: the pod would be killed before what was begun may end; raise the first or lower the second" .Values.terminationGracePeriodSeconds .Values.settings.stopGrace) }}
{{- end }}
{{- end }}
