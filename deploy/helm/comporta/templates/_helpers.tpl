{{- define "comporta.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* What everything is named: at most 54 characters, since some names have more behind it. */}}
{{- define "comporta.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- $fullname := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) }}
{{- default $fullname .Values.fullnameOverride | trunc 54 | trimSuffix "-" }}
{{- end }}

{{- define "comporta.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: comporta
{{- end }}

{{- define "comporta.selector" -}}
app.kubernetes.io/name: {{ include "comporta.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end }}

{{- define "comporta.redisSelector" -}}
app.kubernetes.io/name: {{ include "comporta.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: redis
{{- end }}

{{- define "comporta.storeUrl" -}}
{{- if .Values.redis.enabled -}}
redis://{{ include "comporta.fullname" . }}-redis.{{ .Release.Namespace }}.svc:6379
{{- else -}}
{{ .Values.store.url }}
{{- end }}
{{- end }}

{{- /* What the schema can't say. */}}
{{- define "comporta.refuse" -}}
{{- if .Values.redis.enabled }}
{{- if ne .Values.store.url "memory" }}
{{- fail "store.url: `redis.enabled` runs a Redis and uses it; leave out one of the two" }}
{{- end }}
{{- if not .Values.store.passwordSecret.name }}
{{- fail "store.passwordSecret.name: name a Secret with a password for Redis; make one with: kubectl create secret generic comporta-redis --from-literal=password=$(openssl rand -hex 32)" }}
{{- end }}
{{- else if and .Values.networkPolicy.enabled (ne .Values.store.url "memory") (not .Values.networkPolicy.egress) }}
{{- fail "networkPolicy.egress: say how the store is reached, or nothing gets there; see values.yaml for an example" }}
{{- end }}
{{- if and (or .Values.tls.clientCertificate .Values.tls.clientNames) (not .Values.tls.secret) }}
{{- fail "tls.secret: name the Secret that has the server's certificate" }}
{{- end }}
{{- if and .Values.tls.clientNames (not .Values.tls.clientCertificate) }}
{{- fail "tls.clientCertificate: true is what makes callers show the certificates whose names are in tls.clientNames" }}
{{- end }}
{{- if and .Values.store.tls.clientCertificate (not .Values.store.tls.secret) }}
{{- fail "store.tls.secret: name the Secret that has the client's certificate" }}
{{- end }}
{{- if and (not .Values.rulesConfigMap) (not .Values.rules) }}
{{- fail "rules: there are none; write a file of rules, or name a ConfigMap in rulesConfigMap" }}
{{- end }}
{{- end }}
