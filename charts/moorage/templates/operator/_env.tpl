{{/* The operator's settings, by the names in `moorage_operator/settings.py`. */}}
{{- define "moorage.operatorEnv" -}}
- name: MOORAGE_IDENTITY
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: MOORAGE_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
{{- with .Values.clusterId }}
- name: MOORAGE_CLUSTER_ID
  value: {{ . | quote }}
{{- end }}
{{- with .Values.watchNamespaces }}
- name: MOORAGE_WATCH_NAMESPACES
  value: {{ join "," (uniq .) | quote }}
{{- end }}
{{- with .Values.watchNamespaceSelector }}
- name: MOORAGE_WATCH_NAMESPACE_SELECTOR
  value: {{ . | quote }}
{{- end }}
{{- with .Values.shards }}
- name: MOORAGE_SHARDS
  value: {{ join "," . | quote }}
{{- end }}
{{- with .shard }}
- name: MOORAGE_SHARD
  value: {{ . | quote }}
{{- end }}
{{- with .Values.jobs.stateBackend }}
- name: MOORAGE_STATE_BACKEND
  value: {{ . | quote }}
{{- end }}
{{- if include "moorage.fleetName" . }}
- name: MOORAGE_FLEET
  value: /etc/moorage/fleet.yaml
{{- end }}
- name: MOORAGE_LEADER_ELECTION
  value: {{ .Values.leaderElection.enabled | quote }}
{{- if .Values.leaderElection.enabled }}
- name: MOORAGE_LEASE_NAME
  value: {{ include "moorage.leaseName" . | quote }}
- name: MOORAGE_LEASE_DURATION
  value: {{ .Values.leaderElection.leaseDuration | quote }}
{{- end }}
- name: MOORAGE_READ_SECRETS
  value: {{ .Values.stores.readSecrets | quote }}
- name: MOORAGE_OWN_CREDENTIALS
  value: {{ .Values.stores.ownCredentials | quote }}
{{- with .Values.stores.endpoints }}
- name: MOORAGE_STORE_ENDPOINTS
  value: {{ join "," . | quote }}
{{- end }}
- name: MOORAGE_LOCAL_FILES
  value: {{ .Values.stores.localFiles | quote }}
- name: MOORAGE_HEALTH_PORT
  value: {{ .Values.port | quote }}
- name: MOORAGE_LOG_LEVEL
  value: {{ .Values.logLevel | quote }}
- name: MOORAGE_LOG_FORMAT
  value: {{ .Values.logFormat | quote }}
{{- range $name, $value := .Values.settings }}
- name: MOORAGE_{{ $name | snakecase | upper }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
