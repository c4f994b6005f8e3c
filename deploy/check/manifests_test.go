// Package check holds the Kubernetes manifests against the types of the
// Kubernetes API. It is a module of its own: its requirements are no business of
// the program's.
package check

import (
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// object is what all resources have.
type object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
}

// scaledObject is what we use of KEDA's resource.
type scaledObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		ScaleTargetRef struct {
			Name string `json:"name"`
		} `json:"scaleTargetRef"`
		MinReplicaCount int32 `json:"minReplicaCount"`
		MaxReplicaCount int32 `json:"maxReplicaCount"`
		PollingInterval int32 `json:"pollingInterval"`
		CooldownPeriod  int32 `json:"cooldownPeriod"`
		Advanced        struct {
			HorizontalPodAutoscalerConfig struct {
				Behavior *autoscaling.HorizontalPodAutoscalerBehavior `json:"behavior"`
			} `json:"horizontalPodAutoscalerConfig"`
		} `json:"advanced"`
		Triggers []struct {
			Type     string            `json:"type"`
			Metadata map[string]string `json:"metadata"`
		} `json:"triggers"`
	} `json:"spec"`
}

type manifests struct {
	deployments map[string]appsv1.Deployment
	services    map[string]corev1.Service
	budgets     map[string]policy.PodDisruptionBudget
	scalers     map[string]autoscaling.HorizontalPodAutoscaler
	policies    map[string]networking.NetworkPolicy
	scaled      map[string]scaledObject
	monitors    map[string]monitoring.ServiceMonitor
	configs     map[string]corev1.ConfigMap
}

// build runs kustomize and decodes what comes out, strictly: a field that the
// API does not have is an error.
func build(t *testing.T, dirs ...string) manifests {
	t.Helper()
	m := manifests{
		map[string]appsv1.Deployment{}, map[string]corev1.Service{}, map[string]policy.PodDisruptionBudget{}, map[string]autoscaling.HorizontalPodAutoscaler{},
		map[string]networking.NetworkPolicy{}, map[string]scaledObject{}, map[string]monitoring.ServiceMonitor{}, map[string]corev1.ConfigMap{},
	}
	for _, dir := range dirs {
		res, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), "../kubernetes/"+dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range res.Resources() {
			text, err := r.AsYAML()
			if err != nil {
				t.Fatal(err)
			}
			switch kind := r.GetKind(); kind {
			case "Deployment":
				decode(t, text, m.deployments)
			case "Service":
				decode(t, text, m.services)
			case "PodDisruptionBudget":
				decode(t, text, m.budgets)
			case "HorizontalPodAutoscaler":
				decode(t, text, m.scalers)
			case "NetworkPolicy":
				decode(t, text, m.policies)
			case "ScaledObject":
				decode(t, text, m.scaled)
			case "ServiceMonitor":
				decode(t, text, m.monitors)
			case "ConfigMap":
				decode(t, text, m.configs)
			case "Namespace":
				decode(t, text, map[string]corev1.Namespace{})
			default:
				t.Errorf("a resource of kind %s is not checked", kind)
			}
		}
	}
	return m
}

func decode[T any](t *testing.T, text []byte, into map[string]T) {
	t.Helper()
	var o object
	if err := yaml.Unmarshal(text, &o); err != nil {
		t.Fatal(err)
	}
	var v T
	if err := yaml.UnmarshalStrict(text, &v); err != nil {
		t.Errorf("%s %s: %v", o.Kind, o.Name, err)
	}
	if o.Kind != "Namespace" && o.Namespace != "tidemark" {
		t.Errorf("%s %s is in namespace %q", o.Kind, o.Name, o.Namespace)
	}
	into[o.Name] = v
}

// single are the roles of which one process is enough.
var single = []string{"audit", "lag"}

var workers = []string{"tooffline", "tomongo", "topush", "toredis"}

func TestEachRoleHasADeploymentWithoutRights(t *testing.T) {
	m := build(t, "base")
	for _, role := range append(append([]string{"sync", "gateway"}, workers...), single...) {
		d, ok := m.deployments[role]
		if !ok {
			t.Errorf("there is no %s", role)
			continue
		}
		pod := d.Spec.Template.Spec
		c := pod.Containers[0]
		switch s, p := c.SecurityContext, pod.SecurityContext; {
		case len(pod.Containers) != 1 || !slices.Equal(c.Args[:2], []string{"run", role}):
			t.Errorf("%s runs %v", role, c.Args)
		case !*p.RunAsNonRoot || *p.RunAsUser == 0 || p.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault,
			!*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}):
			t.Errorf("%s has rights that it does not need", role)
		case c.LivenessProbe.HTTPGet.Path != "/healthz" || c.ReadinessProbe.HTTPGet.Path != "/readyz":
			t.Errorf("%s: probes %v, %v", role, c.LivenessProbe, c.ReadinessProbe)
		case *pod.TerminationGracePeriodSeconds <= 25:
			t.Errorf("%s is killed before it has drained", role)
		case c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero():
			t.Errorf("%s has no resources", role)
		case *pod.AutomountServiceAccountToken:
			t.Errorf("%s gets a token of the cluster", role)
		case !strings.HasPrefix(pod.Volumes[0].ConfigMap.Name, "tidemark-") || m.configs[pod.Volumes[0].ConfigMap.Name].Data["tidemark.yaml"] == "":
			t.Errorf("%s: its configuration %s is not there", role, pod.Volumes[0].ConfigMap.Name)
		}
		if d.Spec.Selector.MatchLabels["app.kubernetes.io/name"] != "tidemark" || d.Spec.Template.Labels["app.kubernetes.io/component"] != role {
			t.Errorf("%s: labels %v", role, d.Spec.Template.Labels)
		}
		b, guarded := m.budgets[role]
		if alone := slices.Contains(single, role); guarded == alone || guarded && b.Spec.MaxUnavailable.IntValue() != 1 || (*d.Spec.Replicas == 1) != alone {
			t.Errorf("%s: %d replicas, budget %v", role, *d.Spec.Replicas, guarded)
		}
	}
	if len(m.deployments) != 8 {
		t.Errorf("%d deployments", len(m.deployments))
	}
}

func TestServicesPointAtPortsThatThereAre(t *testing.T) {
	m := build(t, "base", "monitoring")
	ports := func(role string) (names []string) {
		for _, p := range m.deployments[role].Spec.Template.Spec.Containers[0].Ports {
			names = append(names, p.Name)
		}
		return names
	}
	for service, role := range map[string]string{"sync": "sync", "gateway": "gateway", "admin": "toredis"} {
		s := m.services[service]
		if len(s.Spec.Ports) != 1 || !slices.Contains(ports(role), s.Spec.Ports[0].TargetPort.StrVal) {
			t.Errorf("%s: ports %v, of which the pods have %v", service, s.Spec.Ports, ports(role))
		}
		if c := s.Spec.Selector["app.kubernetes.io/component"]; service != "admin" && c != role || service == "admin" && c != "" {
			t.Errorf("%s selects %v", service, s.Spec.Selector)
		}
	}
	sm := m.monitors["tidemark"]
	for k, v := range sm.Spec.Selector.MatchLabels {
		if m.services["admin"].Labels[k] != v {
			t.Errorf("the monitor looks for %s=%s, the service has %v", k, v, m.services["admin"].Labels)
		}
	}
	if sm.Spec.Endpoints[0].Port != m.services["admin"].Spec.Ports[0].Name {
		t.Errorf("the monitor scrapes %v", sm.Spec.Endpoints)
	}
}

// All is closed but what is said.
func TestNobodyReachesAPodUnasked(t *testing.T) {
	m := build(t, "base")
	closed := m.policies["closed"].Spec
	if len(closed.PodSelector.MatchLabels)+len(closed.PodSelector.MatchExpressions) != 0 || len(closed.Ingress)+len(closed.Egress) != 0 || len(closed.PolicyTypes) != 2 {
		t.Errorf("closed: %+v", closed)
	}
	for name, p := range m.policies {
		for _, in := range p.Spec.Ingress {
			if len(in.Ports) == 0 {
				t.Errorf("%s opens every port", name)
			}
			for _, port := range in.Ports {
				if port.Port.StrVal == "admin" && len(in.From) == 0 {
					t.Errorf("%s opens the operator's port to everybody", name)
				}
			}
		}
		for _, out := range p.Spec.Egress {
			if len(out.Ports) == 0 {
				t.Errorf("%s opens every way out", name)
			}
		}
	}
}

func TestScalersNameWhatTheyScale(t *testing.T) {
	m := build(t, "base", "keda")
	for name, h := range m.scalers {
		if _, ok := m.deployments[h.Spec.ScaleTargetRef.Name]; !ok || h.Spec.ScaleTargetRef.Name != name {
			t.Errorf("%s scales %s", name, h.Spec.ScaleTargetRef.Name)
		}
		if slices.Contains(workers, name) {
			t.Errorf("%s is scaled twice", name)
		}
	}
	groups := map[string]string{"toredis": "toRedis", "tomongo": "sequenced", "topush": "sequenced", "tooffline": "toOfflinePush"}
	for _, w := range workers {
		s, ok := m.scaled[w]
		if !ok || s.Spec.ScaleTargetRef.Name != w || len(s.Spec.Triggers) != 1 || s.Spec.MinReplicaCount < 2 || s.Spec.MaxReplicaCount > 12 {
			t.Errorf("%s: %+v", w, s.Spec)
			continue
		}
		meta := s.Spec.Triggers[0].Metadata
		if !strings.HasPrefix(meta["consumerGroup"], "tidemark-"+w) || meta["topic"] != groups[w] || meta["lagThreshold"] == "" {
			t.Errorf("%s: %v", w, meta)
		}
	}
	if len(m.scaled) != len(workers) || len(m.scalers) != 2 {
		t.Errorf("%d and %d", len(m.scaled), len(m.scalers))
	}
}
