package main

const defaultGateway = "ws://127.0.0.1:8081/connection/websocket"
