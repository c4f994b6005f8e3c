package stack

import "github.com/tidemark-im/tidemark/pipeline"

// lagPart shows how far behind all groups of the deployment are, whoever runs
// them and whether anybody does.
func (s *Stack) lagPart() (*part, error) {
	m, err := pipeline.NewLagMonitor(pipeline.LagMonitorConfig{Config: s.kafka, Groups: Groups(s.kafka, s.cfg.ToOffline.Endpoints()...), Every: s.cfg.Lag.Every})
	if err != nil {
		return nil, err
	}
	s.cfg.Health.Add(string(Lag), m.Ready)
	return newPart(string(Lag), m.Run), nil
}
