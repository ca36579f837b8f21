{{- define "tidewaiter.labels" -}}
app.kubernetes.io/name: tidewaiter
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "tidewaiter.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}
