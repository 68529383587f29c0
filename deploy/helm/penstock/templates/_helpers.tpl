{{- define "penstock.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* Not empty if rules come over xDS. */ -}}
{{- define "penstock.xds" -}}
{{- get (.Values.settings | default dict) "rules-xds" }}
{{- end }}

{{- /* Of the admin API, which has the probes and the metrics. */ -}}
{{- define "penstock.scheme" -}}
{{- hasKey (.Values.settings | default dict) "admin-tls-cert" | ternary "https" "http" }}
{{- end }}
