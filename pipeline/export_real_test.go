//go:build real

package pipeline

import "github.com/IBM/sarama"

// AdminForTest gives f a connected administrator.
func AdminForTest(c Config, f func(sarama.ClusterAdmin) error) error {
	conf, err := c.adminConfig()
	if err != nil {
		return err
	}
	admin, err := sarama.NewClusterAdmin(c.Brokers, conf)
	if err != nil {
		return err
	}
	defer admin.Close()
	return f(admin)
}
