{{- define "quorate.name" -}}
{{- if contains "quorate" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-quorate" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end -}}
{{- end -}}

{{- define "quorate.selector" -}}
app.kubernetes.io/name: quorate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "quorate.labels" -}}
{{ include "quorate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: quorate
{{- end -}}
