package pipeline

import (
	"github.com/IBM/sarama"
)

// CommittedForTest gives a group's committed offset, -1: none.
func CommittedForTest(c Config, group, topic string, partition int32) (int64, error) {
	conf, err := c.adminConfig()
	if err != nil {
		return 0, err
	}
	client, err := sarama.NewClient(c.Brokers, conf)
	if err != nil {
		return 0, err
	}
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return 0, err
	}
	defer admin.Close()
	resp, err := admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {partition}})
	if err != nil {
		return 0, err
	}
	if b := resp.GetBlock(topic, partition); b != nil {
		return b.Offset, nil
	}
	return -1, nil
}

// Classify shows the classifier.
var Classify = classify

// SortError shows the wrapper.
var SortError = sortError

// DeleteRecordsForTest cuts the log below offset, as retention would.
func DeleteRecordsForTest(c Config, topic string, partition int32, offset int64) error {
	conf, err := c.adminConfig()
	if err != nil {
		return err
	}
	admin, err := sarama.NewClusterAdmin(c.Brokers, conf)
	if err != nil {
		return err
	}
	defer admin.Close()
	return admin.DeleteRecords(topic, map[int32]int64{partition: offset})
}
