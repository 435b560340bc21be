{{/*
Six templates for the pod of your vLLM, each a list item or a map to put under the key it is named after. All take the
root context.

    metadata:
      labels: {{- include "steptap.podLabels" . | nindent 8 }}
    spec:
      initContainers: {{- include "steptap.initContainer" . | nindent 8 }}
      containers:
        - name: vllm
          env: {{- include "steptap.env" . | nindent 12 }}
          volumeMounts: {{- include "steptap.volumeMounts" . | nindent 12 }}
      volumes: {{- include "steptap.volumes" . | nindent 8 }}

and, as an object of its own, "steptap.podMonitor".
*/}}

{{- define "steptap.podLabels" -}}
steptap/sidecar: "true"
{{- end }}

{{- define "steptap.env" -}}
- name: VLLM_RPC_BASE_PATH
  value: {{ .Values.steptap.directory | quote }}
{{- end }}

{{- define "steptap.volumeMounts" -}}
- name: steptap-sockets
  mountPath: {{ .Values.steptap.directory | quote }}
{{- end }}

{{- define "steptap.volumes" -}}
- name: steptap-sockets
  emptyDir:
    medium: Memory
    sizeLimit: 16Mi
- name: steptap-no-api-token
  emptyDir:
    medium: Memory
    sizeLimit: 1Mi
{{- end }}

{{- define "steptap.initContainer" -}}
{{- $s := .Values.steptap -}}
{{- if gt (add (len $s.directory) 40) 107 }}{{ fail (printf "steptap.directory %s is too long: a socket's path ends at 107 bytes" $s.directory) }}{{ end -}}
- name: steptap
  image: {{ printf "%s:%s" $s.image.repository ($s.image.tag | default "0.1.0") | quote }}
  {{- with $s.image.pullPolicy }}
  imagePullPolicy: {{ . }}
  {{- end }}
  restartPolicy: Always
  args: ["run"]
  env:
    {{- if $s.handshake.enabled }}
    - name: POD_IP
      valueFrom:
        fieldRef:
          fieldPath: status.podIP
    - name: STEPTAP_FRONTEND_HANDSHAKE
      value: tcp://$(POD_IP):{{ $s.handshake.frontendPort }}
    - name: STEPTAP_ENGINE_HANDSHAKE
      value: tcp://$(POD_IP):{{ $s.handshake.enginePort }}
    - name: STEPTAP_ENGINE_PORTS
      value: {{ $s.handshake.dataPorts | quote }}
    {{- end }}
    - name: STEPTAP_IPC_DIR
      value: {{ $s.directory | quote }}
    {{- if ne (int $s.metrics.port) 9464 }}
    - name: STEPTAP_METRICS_PORT
      value: {{ $s.metrics.port | quote }}
    {{- end }}
    {{- range $name, $value := $s.settings }}
    - name: {{ $name }}
      value: {{ $value | quote }}
    {{- end }}
  ports:
    {{- if $s.handshake.enabled }}
    - name: steptap-engines
      containerPort: {{ $s.handshake.enginePort }}
      protocol: TCP
    {{- end }}
    - name: steptap-metrics
      containerPort: {{ $s.metrics.port }}
      protocol: TCP
  startupProbe:
    httpGet:
      path: /startupz
      port: steptap-metrics
    periodSeconds: 1
    timeoutSeconds: 5
    failureThreshold: 60
  readinessProbe:
    httpGet:
      path: /readyz
      port: steptap-metrics
    periodSeconds: 5
    timeoutSeconds: 5
    failureThreshold: 3
  livenessProbe:
    httpGet:
      path: /livez
      port: steptap-metrics
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
  resources: {{- toYaml $s.resources | nindent 4 }}
  securityContext:
    {{- if kindIs "invalid" $s.runAsUser }}
    runAsNonRoot: true
    {{- else }}
    runAsUser: {{ $s.runAsUser }}
    runAsGroup: {{ $s.runAsGroup }}
    {{- end }}
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: ["ALL"]
    seccompProfile:
      type: RuntimeDefault
  volumeMounts:
    - name: steptap-sockets
      mountPath: {{ $s.directory | quote }}
    - name: steptap-no-api-token
      mountPath: /var/run/secrets/kubernetes.io/serviceaccount
      readOnly: true
{{- end }}

{{- define "steptap.podMonitor" -}}
{{- if .Values.steptap.podMonitor.enabled -}}
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  name: {{ .Release.Name }}-steptap
  labels:
    app.kubernetes.io/name: steptap
    {{- with .Values.steptap.podMonitor.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  selector:
    matchLabels:
      {{- include "steptap.podLabels" . | nindent 6 }}
  podMetricsEndpoints:
    - port: steptap-metrics
      path: /metrics
      interval: {{ .Values.steptap.podMonitor.interval }}
      scrapeTimeout: 10s
      relabelings:
        - action: replace
          targetLabel: source
          replacement: steptap
{{- end }}
{{- end }}
